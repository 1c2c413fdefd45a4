"""The picture tells the records as they are."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from yarl import URL

from aiohttp_hardened import Phase, PhaseRecord, RequestRecord
from aiohttp_hardened._cli._console import make_console
from aiohttp_hardened._cli._waterfall import Waterfall, WaterfallHook, draw, shown_url
from aiohttp_hardened.timing import PhaseEvent

ATTEMPT: Any = None
T0 = 1_700_000_000_000_000_000


def record(phase: Phase, start_ms: float, end_ms: float, **fields: Any) -> PhaseRecord:
    kind = RequestRecord if phase is Phase.REQUEST else PhaseRecord
    if phase is Phase.REQUEST:
        fields = {"method": "GET"} | fields
    return kind(
        phase=phase,
        start_ns=T0 + round(start_ms * 1e6),
        duration=(end_ms - start_ms) / 1e3,
        server_address="x.test",
        server_port=443,
        attributes=fields.pop("attributes", {}),
        request_id=1,
        attempt=ATTEMPT,
        **fields,
    )


COLD = [
    record(Phase.DNS, 10, 30, attributes={"aiohttp.client.dns.source": "lookup", "dns.answers": ("127.0.0.1",)}),
    record(Phase.TCP, 30, 40, attributes={"network.peer.address": "127.0.0.1"}),
    record(Phase.TLS, 40, 70, attributes={"tls.protocol.version": "1.3", "tls.resumed": False}),
    record(Phase.SETUP, 10, 70),
    record(Phase.REQUEST, 0, 80, status_code=200),
    record(Phase.BODY, 80, 160, attributes={"aiohttp.client.body.outcome": "complete"}),
]


def drawn(records: list[PhaseRecord], *, width: int = 80, url: str = "https://x.test/", resend_count: int = 0) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None)
    draw(console, Waterfall("GET", url, resend_count, records))
    return stream.getvalue()


def test_a_cold_request() -> None:
    """Phases stand in order under what contains them, each with bar, milliseconds and outcome."""
    assert drawn(COLD).splitlines() == [
        " GET https://x.test/",
        " request            ━━━━━━━━            80.0 ms  200",
        "   connection setup  ━━━━━━             60.0 ms  ok",
        "     dns             ━━                 20.0 ms  ok, lookup, 127.0.0.1",
        "     tcp               ━                10.0 ms  ok, 127.0.0.1",
        "     tls                ━━━             30.0 ms  ok, TLS 1.3",
        " body                       ━━━━━━━━    80.0 ms  complete",
    ]


def test_a_phase_is_never_invisible() -> None:
    """What is too short for the scale is half a column long, at its place."""
    lines = drawn([record(Phase.REQUEST, 0, 1000, status_code=200), record(Phase.BODY, 1000, 1000)]).splitlines()
    assert lines[1].startswith(" request            ━━━━━━━━━━━━━━━━  1000.0 ms")
    assert lines[2].startswith(" body                              ╺     0.0 ms")


def test_a_failure_is_named_once() -> None:
    """The failed phase says its word; what contains it says where that is."""
    lines = drawn([
        record(Phase.TCP, 0, 1, attributes={"network.peer.address": "127.0.0.1"}),
        record(Phase.TLS, 1, 2, error_type="certificate_verification_failed"),
        record(Phase.SETUP, 0, 2, error_type="tls_certificate_verification_failed"),
        record(Phase.REQUEST, 0, 2, error_type="tls_certificate_verification_failed"),
    ]).splitlines()  # fmt: skip
    assert [line[49:] for line in lines[1:]] == [
        "failed in tls",
        "failed in tls",
        "ok, 127.0.0.1",
        "certificate_verification_failed",
    ]


def test_a_failure_that_only_the_request_knows() -> None:
    """Under TLS 1.3 a client certificate is refused after the handshake: the request says the whole word."""
    lines = drawn([
        record(Phase.TLS, 1, 2),
        record(Phase.SETUP, 0, 2),
        record(Phase.REQUEST, 0, 3, error_type="tls_client_certificate_rejected"),
    ]).splitlines()  # fmt: skip
    assert lines[1].endswith("  tls_client_certificate_rejected")


def test_a_cancelled_request() -> None:
    """A cancellation is called that, not an error."""
    lines = drawn([
        record(Phase.DNS, 0, 2, cancelled=True),
        record(Phase.SETUP, 0, 2, cancelled=True),
        record(Phase.REQUEST, 0, 2, cancelled=True),
    ]).splitlines()  # fmt: skip
    assert [line.split()[-1] for line in lines[1:]] == ["cancelled"] * 3


def test_addresses_of_a_race() -> None:
    """The winner is named, and each address that lost, with why; long outcomes go on below."""
    events = (
        PhaseEvent("address failed", T0, {"network.peer.address": "127.0.0.3", "error.type": "connection_refused"}),
        PhaseEvent("address overtaken", T0, {"network.peer.address": "127.0.0.2"}),
    )
    attributes = {
        "network.peer.address": "127.0.0.1",
        "aiohttp.client.tcp.addresses_tried": 3,
        "aiohttp.client.tcp.syn_retransmits": 1,
    }
    lines = drawn([record(Phase.TCP, 0, 251, attributes=attributes, events=events)]).splitlines()
    assert [line[49:] for line in lines[1:]] == [
        "ok, 127.0.0.1,",
        "127.0.0.3 connection_refused,",
        "127.0.0.2 overtaken,",
        "1 SYN retransmission",
    ]
    assert all(line[:49].isspace() for line in lines[2:])


def test_queue_tunnel_proxy_and_reuse() -> None:
    """The remaining phases say what there is to say of them."""
    shown = drawn([
        record(Phase.QUEUE, 0, 5),
        record(Phase.TUNNEL, 6, 7, error_type="proxy_rejected", attributes={"http.response.status_code": 502}),
        record(
            Phase.SETUP,
            5,
            7,
            attributes={"aiohttp.client.proxied": True},
            events=(PhaseEvent("trust store loaded", T0, {}),),
        ),
        record(Phase.REQUEST, 0, 9, status_code=404, error_type="404", reused=True),
        record(
            Phase.BODY,
            9,
            10,
            error_type="aiohttp.ClientPayloadError",
            attributes={"aiohttp.client.body.outcome": "cut"},
        ),
    ]).splitlines()  # fmt: skip
    assert [(line[:19].rstrip(), line[49:]) for line in shown[1:]] == [
        (" request", "404, reused"),
        ("   queue", "ok"),
        ("   connection setup", "ok, trust store loaded,"),
        ("", "by proxy"),
        ("     tunnel", "proxy_rejected, status 502"),
        (" body", "cut, aiohttp.ClientPayloadError"),
    ]


def test_attempts_after_the_first_are_numbered() -> None:
    """A redirect's hop or a retry says which attempt it is."""
    assert drawn(COLD, resend_count=2).splitlines()[0] == " GET https://x.test/  (attempt 3)"


@pytest.mark.parametrize("width", [80, 81, 120, 200])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    """Long URLs are shortened, long durations have no tenths, and no line ends with spaces."""
    records = [
        record(Phase.TLS, 0, 299_999, error_type="certificate_verification_failed"),
        record(Phase.SETUP, 0, 299_999, error_type="tls_certificate_verification_failed"),
        record(Phase.REQUEST, 0, 300_000, error_type="tls_certificate_verification_failed"),
    ]
    shown = drawn(records, width=width, url=f"https://x.test/{'long' * 100}", resend_count=1).splitlines()
    assert max(len(line) for line in shown) <= width
    assert shown == [line.rstrip() for line in shown]
    assert "…  (attempt 2)" in shown[0]
    assert " 300000 ms " in shown[1]


def test_a_wider_terminal_has_longer_bars() -> None:
    """More columns are given to the bars."""
    assert drawn(COLD, width=112).count("━") > drawn(COLD, width=80).count("━")


def test_nothing_was_timed() -> None:
    """An attempt without records is drawn as one."""
    assert drawn([]) == " GET https://x.test/\n   nothing was timed\n"


def test_a_url_is_shown_without_secrets() -> None:
    """Credentials, values of the query and the fragment are not shown."""
    url = URL("https://user:password@x.test/path?token=SECRET&x=1#part")
    assert "https://x.test/path?token=REDACTED&x=REDACTED" == shown_url(url)


def test_the_hook_keeps_attempts_apart() -> None:
    """Records go to the attempt they are of; a lookup that outlived its request, or came too late, to none."""
    hook = WaterfallHook()
    for number in (1, 2):
        attempt: Any = SimpleNamespace(request_id=number, method="GET", url=URL("http://x.test/"), resend_count=0)
        hook.on_request_start(attempt)
    hook(record(Phase.BODY, 0, 1))
    hook(record(Phase.DNS, 0, 9, background=True))
    assert [[Phase.BODY], []] == [[each.phase for each in waterfall.records] for waterfall in hook.take()]
    hook(record(Phase.REQUEST, 0, 1))
    assert [] == hook.take()


def test_words_that_a_stream_cannot_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are escaped; nothing is raised."""
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    make_console().print("[b]:smile: ü\udcff")
    stream.flush()
    assert b"[b]:smile: \\xfc\\udcff\n" == stream.buffer.getvalue()  # type: ignore[attr-defined]

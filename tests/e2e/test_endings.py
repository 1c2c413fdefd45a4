"""The table of endings: what each way a request can end looks like."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aiohttp_hardened import (
    DNSSettings,
    Phase,
    PhaseTimeoutError,
    PlaintextBoundaryError,
    Settings,
    TimeoutSettings,
    TLSSettings,
    create_connector,
    create_session,
    failed_phase,
)
from aiohttp_hardened.telemetry import MetricHook, SpanHook
from aiohttp_hardened.testing import (
    FakeNameServer,
    FixedResolver,
    HTTPServer,
    PhaseRecorder,
    ThrowawayCA,
    TLSServer,
    dead_address,
    http_proxy,
    plaintext_peer,
    raw_server,
    refusing_address,
    scripted_proxy,
    stalled_tls,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

REQUEST, QUEUE, SETUP, DNS, TCP, TUNNEL, TLS, BODY = (
    Phase.REQUEST, Phase.QUEUE, Phase.SETUP, Phase.DNS, Phase.TCP, Phase.TUNNEL, Phase.TLS, Phase.BODY,
)  # fmt: skip

SPAN_OF = {
    QUEUE: "wait for connection",
    SETUP: "connection setup",
    DNS: "DNS lookup",
    TCP: "TCP connect",
    TUNNEL: "CONNECT tunnel",
    TLS: "TLS handshake",
    BODY: "response body",
}
HISTOGRAM_OF = {
    REQUEST: "http.client.request.duration",
    QUEUE: "http.client.request.time_in_queue",
    SETUP: "aiohttp.client.connection_setup.duration",
    DNS: "dns.lookup.duration",
    TCP: "aiohttp.client.tcp_connect.duration",
    TLS: "aiohttp.client.tls_handshake.duration",
}


@dataclass
class Ending:
    """A session that is watched by everything there is, and what a row expects of it."""

    ca: ThrowawayCA
    stack: AsyncExitStack
    timeouts: TimeoutSettings = field(
        default_factory=lambda: TimeoutSettings(queue=0.3, dns=0.3, tcp=0.3, tls=0.3, connect=1.0, read=0.3)
    )
    recorder: PhaseRecorder = field(default_factory=PhaseRecorder)

    def __post_init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.settings = Settings(
            timeouts=self.timeouts, tls=TLSSettings(trust="none", ca_files=(str(self.ca.ca_file),))
        )

    @property
    def hooks(self) -> list[Any]:
        """All of them."""
        return [self.recorder, SpanHook(tracer_provider=self.tracers), MetricHook(meter_provider=self.meters)]

    async def session(self, settings: Settings | None = None, **connector: Any) -> aiohttp.ClientSession:
        """Make a session that knows every name, unless the row says otherwise."""
        settings = settings or self.settings
        if settings.dns == DNSSettings():
            connector.setdefault("resolver", FixedResolver())
        made = create_session(settings, hooks=self.hooks, connector=create_connector(settings, **connector))
        return await self.stack.enter_async_context(made)

    def expect(
        self,
        phases: list[Phase],
        *,
        request_error: str | None = None,
        error: tuple[Phase, str] | None = None,
        cancelled: Phase | None = None,
        attempt: int = -1,
        **attributes: Any,
    ) -> None:
        """Compare the records of one attempt with the row, and the spans and metrics with the records."""
        recorder = self.recorder
        recorder.check_invariants()
        number = recorder.started[attempt]
        records = [each for each in recorder.records if each.request_id == number and not each.background]
        assert phases == [each.phase for each in records], recorder.describe()
        request = next(each for each in records if each.phase is REQUEST)
        assert request_error == request.error_type, recorder.describe()
        if error is not None:
            assert error in [(each.phase, each.error_type) for each in records], recorder.describe()
        if cancelled is not None:
            assert cancelled in [each.phase for each in records if each.cancelled], recorder.describe()
        for name, value in attributes.items():
            phase, key = name.split("__", 1)
            record = next(each for each in records if each.phase is Phase[phase.upper()])
            assert value == record.attributes[key.replace("__", ".")], record
        self._compare_spans()
        self._compare_metrics()

    def _compare_spans(self) -> None:
        spans = self.exporter.get_finished_spans()
        by_id = {span.context.span_id: span for span in spans}
        assert len(self.recorder.records) == len(spans)
        for record in self.recorder.records:
            found = [span for span in spans if _is_of(span, record)]
            assert len(found) == 1, (record, [(span.name, span.start_time) for span in spans])
            span = found[0]
            assert record.error_type == span.attributes.get("error.type")
            assert (record.error_type is not None) == (span.status.status_code is trace.StatusCode.ERROR)
            assert record.cancelled == span.attributes.get("aiohttp.client.cancelled", False)
            parent = by_id[span.parent.span_id].name if span.parent else None
            if record.background:
                assert span.parent is None
                assert len(span.links) == 1
            elif record.phase in (DNS, TCP, TUNNEL, TLS):
                assert parent == "connection setup"
            elif record.phase in (QUEUE, SETUP, BODY):
                assert parent == "GET"
            if record.phase is REQUEST:
                assert span.kind is trace.SpanKind.CLIENT
                assert span.attributes["server.port"] == record.server_port

    def _compare_metrics(self) -> None:
        data = self.reader.get_metrics_data()
        counts: dict[str, int] = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            counts[metric.name] = sum(getattr(point, "count", 0) for point in metric.data.data_points)
            if metric.name == "http.client.active_requests":
                assert {point.value for point in metric.data.data_points} <= {0}
        for phase, name in HISTOGRAM_OF.items():
            records = self.recorder.of(phase)
            if phase is DNS:
                records = [
                    each for each in records if each.attributes.get("aiohttp.client.dns.source") in ("lookup", "system")
                ]
            assert len(records) == counts.get(name, 0), name


def _is_of(span: ReadableSpan, record: Any) -> bool:
    if span.start_time != record.start_ns or span.end_time != record.end_ns:
        return False
    return span.name == SPAN_OF[record.phase] if record.phase in SPAN_OF else span.kind is trace.SpanKind.CLIENT


async def get(session: aiohttp.ClientSession, url: str, **options: Any) -> str:
    """Make a request to its end, and see that the caller's span is the same after it."""
    before = trace.get_current_span()
    try:
        async with session.get(url, **options) as response:
            return await response.text()
    finally:
        assert trace.get_current_span() is before


async def failing(session: aiohttp.ClientSession, url: str, **options: Any) -> BaseException:
    """Make a request that fails; return its exception."""
    with pytest.raises((aiohttp.ClientError, TimeoutError)) as caught:
        await get(session, url, **options)
    return caught.value


async def cancelled_after(seconds: float, request: Awaitable[Any]) -> None:
    """Cancel a request after a while."""
    task = asyncio.ensure_future(request)
    await asyncio.sleep(seconds)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def explained(exc: BaseException, phase: Phase, *words: str) -> None:
    """See that an exception says where it happened."""
    assert phase is failed_phase(exc)
    text = "\n".join([str(exc), *getattr(exc, "__notes__", ())])
    for word in words:
        assert word in text, text


Row = "Callable[[Ending], Awaitable[None]]"
ROWS: dict[str, Row] = {}


def row(function: Any) -> Any:
    """Add a row; its name is the test's id."""
    ROWS[function.__name__.replace("_", " ")] = function
    return function


COLD = [DNS, TCP, SETUP, REQUEST, BODY]
COLD_TLS = [DNS, TCP, TLS, SETUP, REQUEST, BODY]


@row
async def http_cold(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        assert await get(session, server.url(host="x.test")) == "hello\n"
        ending.expect(
            COLD,
            dns__dns__question__name="x.test",
            dns__dns__answers=("127.0.0.1",),
            dns__aiohttp__client__dns__source="lookup",
            tcp__network__peer__address="127.0.0.1",
            tcp__network__type="ipv4",
            tcp__aiohttp__client__tcp__addresses_tried=1,
            setup__url__scheme="http",
            setup__aiohttp__client__connection__attempts=1,
            body__aiohttp__client__body__outcome="complete",
        )


@row
async def https_cold(ending: Ending) -> None:
    async with TLSServer(ending.ca.issue("x.test")) as server:
        session = await ending.session()
        await get(session, server.url(host="x.test"))
        ending.expect(
            COLD_TLS,
            tls__tls__protocol__name="tls",
            tls__tls__protocol__version="1.3",
            tls__tls__established=True,
            tls__tls__resumed=False,
        )


@row
async def https_resumed(ending: Ending) -> None:
    async with TLSServer(ending.ca.issue("x.test")) as server:
        session = await ending.session(force_close=True)
        await get(session, server.url(host="x.test"))
        await get(session, server.url(host="x.test"))
        ending.expect([TCP, TLS, SETUP, REQUEST, BODY], tls__tls__resumed=True)


@row
async def keep_alive_reuse(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        await get(session, server.url(host="x.test"))
        await get(session, server.url(host="x.test"))
        ending.expect([REQUEST, BODY])
        spans = ending.exporter.get_finished_spans()
        setup = next(span for span in spans if span.name == "connection setup")
        reused = [span for span in spans if span.name == "GET"][-1]
        assert [setup.context.span_id] == [link.context.span_id for link in reused.links]


@row
async def ip_literal(ending: Ending) -> None:
    async with HTTPServer() as server:
        await get(await ending.session(), server.url())
        ending.expect([TCP, SETUP, REQUEST, BODY])


@row
async def dns_cache_hit(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session(force_close=True)
        await get(session, server.url(host="x.test"))
        await get(session, server.url(host="x.test"))
        ending.expect([TCP, SETUP, REQUEST, BODY])


@row
async def coalesced_lookup(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session(resolver=FixedResolver(delay=0.05))
        await asyncio.gather(*(get(session, server.url(host="x.test")) for _ in range(3)))
        sources = sorted(each.attributes["aiohttp.client.dns.source"] for each in ending.recorder.of(DNS))
        assert ["coalesced", "coalesced", "lookup"] == sources
        ending.expect(COLD)


@row
async def coalesced_lookup_that_fails(ending: Ending) -> None:
    session = await ending.session(resolver=FixedResolver(delay=0.05, exception=OSError(None, "no")))
    found = await asyncio.gather(*(failing(session, "http://x.test:1/") for _ in range(3)))
    for exc in found:
        explained(exc, DNS, "dns lookup of x.test failed: server_failure")
    assert len({id(exc) for exc in found}) == 3
    ending.expect([DNS, SETUP, REQUEST], request_error="dns_server_failure")


def dns_row(name: str, mode: Any, word: str) -> None:
    async def run(ending: Ending) -> None:
        with FakeNameServer() as names:
            names.set("x.test", "127.0.0.1", mode=mode)
            settings = Settings(timeouts=ending.timeouts, dns=DNSSettings(nameservers=(names.address,)))
            exc = await failing(await ending.session(settings), "http://x.test:1/")
            explained(exc, DNS, "dns lookup of x.test")
            ending.expect(
                [DNS, SETUP, REQUEST],
                request_error=f"dns_{word}",
                error=(DNS, word),
                dns__aiohttp__client__dns__source="lookup",
            )
            if word == "timed_out":
                assert isinstance(exc, aiohttp.ConnectionTimeoutError)
                assert isinstance(exc.__cause__, PhaseTimeoutError)
                assert (DNS, 0.3) == (exc.__cause__.phase, exc.__cause__.budget)
            else:
                assert isinstance(exc, aiohttp.ClientConnectorDNSError)
                assert word == exc.os_error.reason

    ROWS[name] = run


dns_row("dns no such name", "nxdomain", "host_not_found")
dns_row("dns server failure", "servfail", "server_failure")
dns_row("dns no data", "nodata", "no_data")
dns_row("dns refused", "refused", "refused")
dns_row("dns silent server", "silent", "timed_out")


@row
async def tcp_refused(ending: Ending) -> None:
    with refusing_address() as (host, port):
        exc = await failing(await ending.session(), f"http://{host}:{port}/")
        explained(exc, TCP, f"tcp connect to {host}:{port} failed: connection_refused", "1 address tried")
        ending.expect([TCP, SETUP, REQUEST], request_error="tcp_connection_refused", error=(TCP, "connection_refused"))


@row
async def tcp_all_refused(ending: Ending) -> None:
    with refusing_address() as (_, port):
        resolver = FixedResolver(("127.0.0.1", "127.0.0.2", "127.0.0.3"))
        exc = await failing(await ending.session(resolver=resolver), f"http://x.test:{port}/")
        explained(exc, TCP, "connection_refused", "3 addresses tried")
        ending.expect(
            [DNS, TCP, SETUP, REQUEST],
            request_error="tcp_connection_refused",
            tcp__aiohttp__client__tcp__addresses_tried=3,
            setup__aiohttp__client__connection__attempts=1,
        )
        assert ["address failed"] * 3 == [event.name for event in ending.recorder.only(TCP).events]


@row
async def tcp_first_address_dead(ending: Ending) -> None:
    async with HTTPServer() as server:
        with dead_address("127.0.0.2", server.port):
            session = await ending.session(
                resolver=FixedResolver(("127.0.0.2", "127.0.0.1")), happy_eyeballs_delay=0.25
            )
            await get(session, server.url(host="x.test"))
            ending.expect(COLD, tcp__network__peer__address="127.0.0.1", tcp__aiohttp__client__tcp__addresses_tried=2)
            assert ["address overtaken"] == [event.name for event in ending.recorder.only(TCP).events]


@row
async def tcp_all_dead(ending: Ending) -> None:
    with dead_address("127.0.0.2") as (_, port), dead_address("127.0.0.3", port):
        session = await ending.session(resolver=FixedResolver(("127.0.0.2", "127.0.0.3")), happy_eyeballs_delay=0.1)
        exc = await failing(session, f"http://x.test:{port}/")
        explained(exc, TCP, f"tcp connect to x.test:{port} timed out after 0.30 s", "2 addresses tried")
        assert isinstance(exc.__cause__, PhaseTimeoutError)
        ending.expect([DNS, TCP, SETUP, REQUEST], request_error="tcp_timed_out", error=(TCP, "timed_out"))


def tls_row(name: str, word: str, certificate: Callable[[ThrowawayCA], Any], host: str = "x.test") -> None:
    async def run(ending: Ending) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the server's side of a refusal
        async with TLSServer(certificate(ending.ca)) as server:
            exc = await failing(await ending.session(), server.url(host=host))
            assert isinstance(exc, aiohttp.ClientConnectorCertificateError)
            explained(exc, TLS, f"tls handshake with {host}:{server.port} failed: {word}")
            ending.expect(
                [DNS, TCP, TLS, SETUP, REQUEST],
                request_error=f"tls_{word}",
                error=(TLS, word),
                tls__tls__established=False,
            )

    ROWS[name] = run


tls_row("tls expired", "certificate_expired", lambda ca: ca.issue_expired("x.test"))
tls_row("tls not yet valid", "certificate_not_yet_valid", lambda ca: ca.issue_not_yet_valid("x.test"))
tls_row("tls wrong host", "certificate_hostname_mismatch", lambda ca: ca.issue("y.test"))
tls_row("tls unknown authority", "certificate_authority_invalid", lambda ca: ca.issue_untrusted("x.test"))


@row
async def tls_plaintext_peer(ending: Ending) -> None:
    async with plaintext_peer() as (host, port):
        exc = await failing(await ending.session(), f"https://{host}:{port}/")
        explained(exc, TLS, "plaintext_peer")
        ending.expect([TCP, TLS, SETUP, REQUEST], request_error="tls_plaintext_peer")


@row
async def tls_stalled(ending: Ending) -> None:
    with stalled_tls() as (host, port):
        exc = await failing(await ending.session(), f"https://{host}:{port}/")
        explained(exc, TLS, "timed out after 0.30 s")
        assert (TLS, 0.3) == (exc.__cause__.phase, exc.__cause__.budget)
        ending.expect([TCP, TLS, SETUP, REQUEST], request_error="tls_timed_out", error=(TLS, "timed_out"))


@row
async def tls_peer_hangs_up(ending: Ending) -> None:
    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(100)

    async with raw_server(hang_up) as (host, port):
        exc = await failing(await ending.session(), f"https://{host}:{port}/")
        explained(exc, TLS, "peer_connection_closed")
        ending.expect([TCP, TLS, SETUP, REQUEST], request_error="tls_peer_connection_closed")


@row
async def proxy_200(ending: Ending) -> None:
    with http_proxy() as proxy:
        async with TLSServer(ending.ca.issue("127.0.0.1")) as server:
            await get(await ending.session(), server.url(), proxy=proxy)
            ending.expect(
                [TCP, TUNNEL, TLS, SETUP, REQUEST, BODY],
                tunnel__http__response__status_code=200,
                setup__aiohttp__client__proxied=True,
            )


@row
async def https_proxy(ending: Ending) -> None:
    with http_proxy(ending.ca.issue("127.0.0.1")) as proxy:
        async with TLSServer(ending.ca.issue("127.0.0.1")) as server:
            await get(await ending.session(), server.url(), proxy=proxy)
            ending.expect([TCP, TLS, TUNNEL, TLS, SETUP, REQUEST, BODY])


def proxy_row(name: str, answer: bytes | None, word: str, kind: type[BaseException], **attributes: Any) -> None:
    async def run(ending: Ending) -> None:
        async with scripted_proxy(answer) as proxy:
            exc = await failing(await ending.session(), "https://127.0.0.1:1/", proxy=proxy)
            assert isinstance(exc, kind)
            explained(
                exc, TUNNEL, "CONNECT tunnel through 127.0.0.1" if word != "plaintext_after_connect" else "plaintext"
            )
            ending.expect(
                [TCP, TUNNEL, SETUP, REQUEST], request_error=f"tunnel_{word}", error=(TUNNEL, word), **attributes
            )

    ROWS[name] = run


STATUS = "tunnel__http__response__status_code"
proxy_row(
    "proxy 407",
    b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
    "proxy_authentication_required",
    aiohttp.ClientHttpProxyError,
    **{STATUS: 407},
)
proxy_row(
    "proxy 502",
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    "proxy_rejected",
    aiohttp.ClientHttpProxyError,
    **{STATUS: 502},
)
proxy_row("proxy stalled", None, "timed_out", aiohttp.ConnectionTimeoutError)
proxy_row(
    "proxy glues plaintext",
    b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nowned",
    "plaintext_after_connect",
    PlaintextBoundaryError,
    **{STATUS: 200},
)


@row
async def queue_wait(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session(limit=1)
        await asyncio.gather(get(session, server.url("/slow?seconds=0.1")), get(session, server.url()))
        ending.expect([QUEUE, REQUEST, BODY])


@row
async def queue_timeout(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session(limit=1)
        busy = asyncio.create_task(get(session, server.url("/stream?chunks=5&seconds=0.15")))
        await asyncio.sleep(0.05)
        exc = await failing(session, server.url())
        explained(exc, QUEUE, "timed out after 0.30 s", "the pool was full (limit 1)")
        await busy
        ending.expect([QUEUE, REQUEST], request_error="queue_timed_out", error=(QUEUE, "timed_out"))


async def hanging(ending: Ending, phase: Phase) -> tuple[aiohttp.ClientSession, str, dict[str, Any]]:
    """Give a session and a request that hangs in a phase for long enough."""
    stack = ending.stack
    ending.settings = Settings(tls=ending.settings.tls)
    if phase is QUEUE:
        server = await stack.enter_async_context(HTTPServer())
        session = await ending.session(limit=1)
        busy = asyncio.create_task(get(session, server.url("/slow?seconds=0.5")))
        stack.push_async_callback(asyncio.wait, [busy])
        await asyncio.sleep(0.05)
        return session, server.url(), {}
    if phase is DNS:
        names = stack.enter_context(FakeNameServer())
        names.set("x.test", "127.0.0.1", mode="silent")
        ending.settings = Settings(dns=DNSSettings(nameservers=(names.address,)), timeouts=TimeoutSettings(dns=1.0))
        return await ending.session(), "http://x.test/", {}
    if phase is TCP:
        host, port = stack.enter_context(dead_address())
        return await ending.session(), f"http://{host}:{port}/", {}
    if phase is TUNNEL:
        proxy = await stack.enter_async_context(scripted_proxy(None))
        return await ending.session(), "https://x.test/", {"proxy": proxy}
    if phase is TLS:
        host, port = stack.enter_context(stalled_tls())
        return await ending.session(), f"https://{host}:{port}/", {}
    server = await stack.enter_async_context(HTTPServer())
    path = "/slow?seconds=5" if phase is REQUEST else "/stream?chunks=3&seconds=5"
    return await ending.session(), server.url(path), {}


BEFORE: dict[Phase, list[Phase]] = {
    QUEUE: [QUEUE, REQUEST],
    DNS: [DNS, SETUP, REQUEST],
    TCP: [TCP, SETUP, REQUEST],
    TUNNEL: [TCP, TUNNEL, SETUP, REQUEST],
    TLS: [TCP, TLS, SETUP, REQUEST],
    REQUEST: [TCP, SETUP, REQUEST],
    BODY: [TCP, SETUP, REQUEST, BODY],
}


def phase_rows(phase: Phase) -> None:
    async def run_total(ending: Ending) -> None:
        session, url, options = await hanging(ending, phase)
        exc = await failing(session, url, timeout=aiohttp.ClientTimeout(total=0.2), **options)
        assert type(exc) is TimeoutError
        if phase is not BODY:
            explained(exc, phase, "total", "0.20 s")
        if phase is DNS:
            await asyncio.sleep(1.0)
            assert ["timed_out"] == [each.error_type for each in ending.recorder.of(DNS) if each.background]
        await asyncio.sleep(0.5 if phase is QUEUE else 0)
        word = {REQUEST: "TimeoutError", BODY: None}.get(phase, f"{phase.value}_timed_out")
        first = 0 if phase is not QUEUE else 1
        error = (phase, "TimeoutError" if phase in (REQUEST, BODY) else "timed_out")
        ending.expect(BEFORE[phase], request_error=word, error=error, attempt=first)

    async def run_cancelled(ending: Ending) -> None:
        session, url, options = await hanging(ending, phase)
        await cancelled_after(0.1, get(session, url, **options))
        if phase is DNS:
            await asyncio.sleep(1.1)
        await asyncio.sleep(0.5 if phase is QUEUE else 0)
        first = 0 if phase is not QUEUE else 1
        ending.expect(BEFORE[phase], cancelled=phase, attempt=first)

    ROWS[f"total timeout in {phase.name.lower()}"] = run_total
    ROWS[f"cancelled in {phase.name.lower()}"] = run_cancelled


for _phase in BEFORE:
    phase_rows(_phase)


@row
async def redirect_on_one_origin(ending: Ending) -> None:
    async with HTTPServer() as server:
        await get(await ending.session(), server.url("/redirect?to=/echo"))
        ending.expect([REQUEST, BODY])
        first, second = ending.recorder.requests()
        assert [(0, 302), (1, 200)] == [(each.resend_count, each.status_code) for each in (first, second)]


@row
async def redirect_across_origins(ending: Ending) -> None:
    async with HTTPServer() as server, HTTPServer() as other:
        await get(await ending.session(), server.url(f"/redirect?to={other.url()}"))
        ending.expect([TCP, SETUP, REQUEST, BODY])
        assert "traceparent" in server.requests[0].headers
        assert "traceparent" not in other.requests[0].headers


@row
async def silent_retry_on_a_dead_keep_alive(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        await get(session, server.url("/close-keepalive"))
        await get(session, server.url("/close-keepalive"))
        ending.expect([REQUEST], request_error="aiohttp.ServerDisconnectedError", attempt=1)
        ending.expect([TCP, SETUP, REQUEST, BODY])
        assert [0, 0, 1] == [each.resend_count for each in ending.recorder.requests()]


@row
async def status_4xx(ending: Ending) -> None:
    async with HTTPServer() as server:
        await get(await ending.session(), server.url("/status/404"))
        ending.expect([TCP, SETUP, REQUEST, BODY], request_error="404")


@row
async def status_5xx_raised(ending: Ending) -> None:
    async with HTTPServer() as server:
        exc = await failing(await ending.session(), server.url("/status/503"), raise_for_status=True)
        assert isinstance(exc, aiohttp.ClientResponseError)
        assert failed_phase(exc) is REQUEST
        ending.expect([TCP, SETUP, REQUEST, BODY], request_error="503")


@row
async def body_cut_short(ending: Ending) -> None:
    async with HTTPServer() as server:
        exc = await failing(await ending.session(), server.url("/cut"))
        assert failed_phase(exc) is BODY
        ending.expect(
            [TCP, SETUP, REQUEST, BODY],
            error=(BODY, "aiohttp.ClientPayloadError"),
            body__aiohttp__client__body__outcome="cut",
        )


@row
async def body_never_read(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        async with session.get(server.url("/stream?chunks=3&seconds=5")) as response:
            assert response.status == 200
        ending.expect([TCP, SETUP, REQUEST, BODY], body__aiohttp__client__body__outcome="abandoned")


@row
async def session_closed_under_a_body(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        response = await session.get(server.url("/stream?chunks=3&seconds=5"))
        await session.close()
        ending.expect([TCP, SETUP, REQUEST, BODY], body__aiohttp__client__body__outcome="abandoned")
        response.close()


@row
async def body_stalls(ending: Ending) -> None:
    async with HTTPServer() as server:
        exc = await failing(await ending.session(), server.url("/stream?chunks=3&seconds=2"))
        assert isinstance(exc, aiohttp.SocketTimeoutError)
        assert failed_phase(exc) is BODY
        assert isinstance(exc.__cause__, PhaseTimeoutError)
        ending.expect(
            [TCP, SETUP, REQUEST, BODY],
            error=(BODY, "aiohttp.SocketTimeoutError"),
            body__aiohttp__client__body__outcome="cut",
        )


@row
async def headers_never_come(ending: Ending) -> None:
    async with HTTPServer() as server:
        exc = await failing(await ending.session(), server.url("/slow?seconds=5"))
        assert isinstance(exc, aiohttp.SocketTimeoutError)
        explained(exc, REQUEST, "read budget of 0.30 s")
        ending.expect([TCP, SETUP, REQUEST], request_error="aiohttp.SocketTimeoutError")


@row
async def websocket_accepted(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        async with session.ws_connect(server.url("/ws")) as socket:
            await socket.send_str("hello")
            assert (await socket.receive()).data == "hello"
        ending.expect([TCP, SETUP, REQUEST])
        assert ending.recorder.requests()[0].status_code == 101


@row
async def websocket_refused(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(server.url("/ws?refuse=1"))
        ending.expect([TCP, SETUP, REQUEST], request_error="403")


async def unix_socket(ending: Ending, path: Path) -> None:
    async with HTTPServer(unix_path=path / "s"):
        connector = aiohttp.UnixConnector(str(path / "s"))
        async with create_session(ending.settings, hooks=ending.hooks, connector=connector) as session:
            assert type(session.connector).__qualname__ == "UnixConnector"
            assert isinstance(session.connector, aiohttp.UnixConnector)
            await get(session, "http://localhost/")
            ending.expect([SETUP, REQUEST, BODY])


@pytest.mark.parametrize("name", list(ROWS))
async def test_an_ending(name: str, throwaway_ca: ThrowawayCA) -> None:
    """Each ending has its phases, its parents, its words, and leaves nothing behind."""
    async with AsyncExitStack() as stack:
        await ROWS[name](Ending(throwaway_ca, stack))


async def test_an_ending_on_a_unix_socket(throwaway_ca: ThrowawayCA, tmp_path: Path) -> None:
    """A connector of another kind keeps its class and tells of its set-up."""
    async with AsyncExitStack() as stack:
        await unix_socket(Ending(throwaway_ca, stack), tmp_path)

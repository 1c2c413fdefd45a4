from __future__ import annotations

import asyncio
import base64
import dataclasses
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from aiohttp_hardened import testing
from aiohttp_hardened.timing import Phase, PhaseRecord, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

MILLISECOND = 1_000_000


def session(resolver: testing.FixedResolver | None = None, **options: Any) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(resolver=resolver or testing.FixedResolver(), **options)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=10))


async def fetch(url: str, **options: Any) -> str:
    async with session() as client, client.get(url, **options) as response:
        return await response.text()


# --- certificates


async def test_leaf_is_trusted_under_its_names_only(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles
) -> None:
    """A leaf is accepted for the names that it was issued for, and for no other."""
    context = throwaway_ca.client_context()
    async with testing.TLSServer(loopback_certificate) as server:
        assert await fetch(server.url(host="x.test"), ssl=context) == "hello\n"
        assert await fetch(server.url(), ssl=context) == "hello\n"
        with pytest.raises(aiohttp.ClientConnectorCertificateError, match=r"evil\.test"):
            await fetch(server.url(host="evil.test"), ssl=context)


@pytest.mark.parametrize(
    ("verify_code", "method"), [(10, "issue_expired"), (9, "issue_not_yet_valid"), (20, "issue_untrusted")]
)
async def test_bad_leaf_is_refused_for_its_reason(
    throwaway_ca: testing.ThrowawayCA, verify_code: int, method: str
) -> None:
    """Each kind of bad leaf is refused with OpenSSL's own code for that kind."""
    leaf = getattr(throwaway_ca, method)("x.test")
    async with testing.TLSServer(leaf) as server:
        with pytest.raises(aiohttp.ClientConnectorCertificateError) as caught:
            await fetch(server.url(host="x.test"), ssl=throwaway_ca.client_context())
    assert caught.value.certificate_error.verify_code == verify_code


def test_files_say_what_openssl_says(throwaway_ca: testing.ThrowawayCA) -> None:
    """Serial number and end are those that a TLS peer reads."""
    files = throwaway_ca.issue("x.test")
    seen = ssl._ssl._test_decode_cert(str(files.cert_file))
    assert files.serial_number == seen["serialNumber"]
    assert files.not_after.timestamp() == ssl.cert_time_to_seconds(seen["notAfter"])
    assert files.key_file.stat().st_mode & 0o777 == 0o600


def test_intermediate_is_in_the_chain(throwaway_ca: testing.ThrowawayCA) -> None:
    """A leaf that was issued through an intermediate carries it."""
    assert throwaway_ca.issue("x.test", intermediate=True).cert_file.read_text().count("BEGIN CERTIFICATE") == 2
    assert throwaway_ca.issue("x.test").cert_file.read_text().count("BEGIN CERTIFICATE") == 1


def test_authority_is_gone_with_its_block() -> None:
    """A throwaway authority leaves no file behind."""
    with testing.throwaway_ca() as ca:
        directory = ca.ca_file.parent
        assert ca.ca_file.exists()
    assert not directory.exists()


async def test_client_certificate_is_required_and_shown(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles
) -> None:
    """A server with a client authority refuses a stranger, and names the client that it let in."""
    client = throwaway_ca.issue_client("billing")
    async with testing.TLSServer(loopback_certificate, client_ca=throwaway_ca.ca_file) as server:
        # asyncio's server closes the connection instead of sending the alert.
        with pytest.raises((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)):
            await fetch(server.url("/echo"), ssl=throwaway_ca.client_context())
        assert '"client": "billing"' in await fetch(server.url("/echo"), ssl=throwaway_ca.client_context(client))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("wrong key", "KEY_VALUES_MISMATCH"),
        ("truncated key", "PEM"),
        ("truncated certificate", "PEM"),
        ("empty", "PEM"),
        ("missing key", "No such file"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_broken_bundle_cannot_be_loaded(
    throwaway_ca: testing.ThrowawayCA, fault: testing.BundleFault, reason: str, overwrite: bool
) -> None:
    """A broken bundle fails for the reason in its name, as new files and over old ones."""
    over = throwaway_ca.issue("x.test") if overwrite else None
    files = testing.broken_certificate_bundle(throwaway_ca, fault, "x.test", over=over)
    if over is not None:
        assert (files.cert_file, files.key_file) == (over.cert_file, over.key_file)
    with pytest.raises(OSError, match=reason):
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.cert_file, files.key_file)


@pytest.mark.parametrize(("fault", "verify_code"), [("expired", 10), ("not yet valid", 9)])
async def test_untimely_bundle_loads_and_is_refused(
    throwaway_ca: testing.ThrowawayCA, fault: testing.BundleFault, verify_code: int
) -> None:
    """A bundle with wrong dates loads; only its clients notice."""
    files = testing.broken_certificate_bundle(throwaway_ca, fault, "x.test")
    async with testing.TLSServer(files) as server:
        with pytest.raises(aiohttp.ClientConnectorCertificateError) as caught:
            await fetch(server.url(host="x.test"), ssl=throwaway_ca.client_context())
    assert caught.value.certificate_error.verify_code == verify_code


# --- servers


async def test_routes_answer() -> None:
    """Each route of the server does what its line in the docstring says."""
    async with testing.HTTPServer() as server, session() as client:
        for code in (200, 404, 503):
            async with client.get(server.url(f"/status/{code}")) as response:
                assert response.status == code
        async with client.get(server.url("/bytes?count=2500")) as response:
            assert len(await response.read()) == 2500
        async with client.get(server.url("/stream?chunks=2&seconds=0")) as response:
            assert len(await response.read()) == 2000
        async with client.get(server.url("/redirect?to=/"), allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (302, "/")
        async with client.post(server.url("/echo?a=1"), data=b"body", headers={"X-Mine": "1"}) as response:
            echo = await response.json()
        assert (echo["method"], echo["path"], echo["body"]) == ("POST", "/echo?a=1", "body")
        assert ["X-Mine", "1"] in echo["headers"]
        assert echo["tls_version"] is None
        async with client.ws_connect(server.url("/ws")) as websocket:
            await websocket.send_str("hi")
            assert await websocket.receive_str() == "hi"
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await client.ws_connect(server.url("/ws?refuse=1"))
        assert len(server.requests) == 9
        assert server.connections <= 3


async def test_slow_route_is_late() -> None:
    """`/slow` sends its headers only after the time that was asked for."""
    async with testing.HTTPServer() as server, session() as client:
        with pytest.raises(TimeoutError):
            await client.get(server.url("/slow?seconds=5"), timeout=aiohttp.ClientTimeout(total=0.1))
        assert await fetch(server.url("/slow?seconds=0.01")) == "slow\n"


async def test_cut_route_breaks_the_body() -> None:
    """`/cut` gives complete headers and an incomplete body."""
    async with testing.HTTPServer() as server, session() as client, client.get(server.url("/cut")) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_close_keepalive_makes_the_client_resend() -> None:
    """`/close-keepalive` drops the second request of a connection: aiohttp sends it again on a new one."""
    async with testing.HTTPServer() as server, session() as client:
        for _ in range(2):
            async with client.get(server.url("/close-keepalive")) as response:
                assert await response.text() == "once\n"
        assert len(server.requests) == 3
        assert server.connections == 2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_server_tells_version_name_and_resumption(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles, version: ssl.TLSVersion
) -> None:
    """A TLS server speaks the version that it was given, notes the SNI, and shows whether a session was resumed."""
    options = {"minimum_version": version, "maximum_version": version}
    async with testing.TLSServer(loopback_certificate, **options) as server, session() as client:
        async with client.get(server.url("/echo", host="x.test"), ssl=throwaway_ca.client_context()) as response:
            echo = await response.json()
        assert echo["tls_version"] == version.name.replace("_", ".")
        assert echo["session_reused"] is False
        assert server.server_names == ["x.test"]


async def test_server_on_unix_socket(tmp_path: Path) -> None:
    """A server can listen on a unix socket."""
    path = tmp_path / "s"
    async with (
        testing.HTTPServer(unix_path=path) as server,
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as client,
        client.get(server.url()) as response,
    ):
        assert await response.text() == "hello\n"


def test_tls_server_needs_a_certificate() -> None:
    """A TLS server without a certificate is refused when it is made."""
    with pytest.raises(TypeError, match="certificate"):
        testing.TLSServer()


async def test_two_servers_share_a_port_on_two_addresses() -> None:
    """A live server and a dead address can have one port, for names with a dead first address."""
    async with testing.HTTPServer() as server:
        with testing.dead_address("127.0.0.2", server.port) as dead:
            assert dead == ("127.0.0.2", server.port)
            resolver = testing.FixedResolver(("127.0.0.2", "127.0.0.1"))
            async with session(resolver, happy_eyeballs_delay=0.05) as client:
                async with client.get(server.url(host="x.test")) as response:
                    assert response.status == 200
                assert resolver.calls == ["x.test"]


# --- faults


async def test_dead_address_drops_the_syn(dead_address: testing.Address) -> None:
    """A connect to a dead address neither succeeds nor fails."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await asyncio.open_connection(*dead_address)


async def test_refusing_address_refuses(refusing_address: testing.Address) -> None:
    """A connect to a refusing address is refused."""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*refusing_address)


async def test_stalled_tls_never_answers(stalled_tls: testing.Address, throwaway_ca: testing.ThrowawayCA) -> None:
    """A stalled peer completes the TCP connect and nothing after it."""
    _, writer = await asyncio.open_connection(*stalled_tls)
    writer.close()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.open_connection(*stalled_tls, ssl=throwaway_ca.client_context(), server_hostname="x.test")


async def test_plaintext_peer_is_no_tls(throwaway_ca: testing.ThrowawayCA) -> None:
    """A plaintext peer makes the handshake fail with OpenSSL's word for it."""
    async with testing.plaintext_peer() as address:
        with pytest.raises(ssl.SSLError) as caught:
            await asyncio.open_connection(*address, ssl=throwaway_ca.client_context(), server_hostname="x.test")
    assert caught.value.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO")
async def test_accept_queue_overflow_retransmits_one_syn() -> None:
    """A connect into a full accept queue succeeds with one SYN retransmission, and then gets its answer."""
    async with testing.accept_queue_overflow() as address:
        reader, writer = await asyncio.open_connection(*address)
        info = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        assert struct.unpack_from("I", info, 100) == (1,)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()


@pytest.mark.loops("asyncio")
async def test_full_executor_makes_others_wait() -> None:
    """With a full default executor, whatever needs a thread of it waits until the block ends."""
    async with testing.full_default_executor():
        waiting = asyncio.create_task(asyncio.to_thread(os.getpid))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
    assert await waiting == os.getpid()


async def test_raw_server_raises_a_handlers_error() -> None:
    """An error in a raw server's handler reaches the test, and not a log."""

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise LookupError("in the handler")

    with pytest.raises(LookupError, match="in the handler"):  # noqa: PT012  # it is raised at the end of the block
        async with testing.raw_server(fail) as address:
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.read() == b""
            writer.close()


# --- proxies


async def test_real_proxy_tunnels(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles, http_proxy: str
) -> None:
    """Https through a real http proxy arrives."""
    async with testing.TLSServer(loopback_certificate) as server:
        text = await fetch(server.url(), proxy=http_proxy, ssl=throwaway_ca.client_context())
        assert text == "hello\n"


async def test_real_https_proxy_tunnels(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles, https_proxy: str
) -> None:
    """Https through a real https proxy arrives: TLS in TLS."""
    async with testing.TLSServer(loopback_certificate) as server:
        text = await fetch(server.url(), proxy=https_proxy, ssl=throwaway_ca.client_context())
        assert text == "hello\n"


async def test_real_proxy_asks_for_a_password(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles
) -> None:
    """A real proxy with a password answers 407 to strangers."""
    with testing.http_proxy(basic_auth="user:secret") as proxy:
        async with testing.TLSServer(loopback_certificate) as server:
            context = throwaway_ca.client_context()
            with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
                await fetch(server.url(), proxy=proxy, ssl=context)
            assert caught.value.status == 407
            login = {"Proxy-Authorization": f"Basic {base64.b64encode(b'user:secret').decode()}"}
            assert await fetch(server.url(), proxy=proxy, proxy_headers=login, ssl=context) == "hello\n"


@pytest.mark.parametrize("proxy_tls", [False, True])
async def test_scripted_proxy_tunnels(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles, proxy_tls: bool
) -> None:
    """A scripted proxy with nothing in its script is an honest one, and shows what it was asked."""
    outer = testing.server_context(loopback_certificate) if proxy_tls else None
    async with testing.TLSServer(loopback_certificate) as server:
        target, heads = ("127.0.0.1", server.port), []
        async with testing.scripted_proxy(target=target, ssl_context=outer, heads=heads) as proxy:
            url = server.url(host="x.test")
            assert await fetch(url, proxy=proxy, ssl=throwaway_ca.client_context()) == "hello\n"
            assert heads[0].startswith(f"CONNECT x.test:{server.port} ".encode())


async def test_scripted_proxy_refuses(throwaway_ca: testing.ThrowawayCA) -> None:
    """A scripted proxy answers with the status in its script."""
    answer = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"
    async with testing.scripted_proxy(answer) as proxy:
        with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
            await fetch("https://x.test/", proxy=proxy, ssl=throwaway_ca.client_context())
    assert caught.value.status == 502


async def test_scripted_proxy_stalls(throwaway_ca: testing.ThrowawayCA) -> None:
    """A scripted proxy without an answer takes the request and is silent."""
    heads: list[bytes] = []
    async with testing.scripted_proxy(None, heads=heads) as proxy:
        with pytest.raises(TimeoutError):
            await fetch(
                "https://x.test/",
                proxy=proxy,
                ssl=throwaway_ca.client_context(),
                timeout=aiohttp.ClientTimeout(total=0.2),
            )
        assert len(heads) == 1


@pytest.mark.parametrize("pause", [0.0, 0.05])
async def test_scripted_proxy_injects(pause: float) -> None:
    """A scripted proxy puts its plaintext between the 200 and the tunnel, glued or apart."""
    async with testing.scripted_proxy(injected=b"evil", pause=pause, target=("127.0.0.1", 1)) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(proxy).port)
        writer.write(b"CONNECT x.test:443 HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\nevil")
        writer.close()


# --- resolver


async def test_fixed_resolver_knows_what_it_was_told() -> None:
    """A fixed resolver answers per name and family, raises what it was given, and counts."""
    resolver = testing.FixedResolver({"x.test": ("127.0.0.2", "::1")})
    v4 = await resolver.resolve("x.test", 1)
    both = await resolver.resolve("x.test", 1, socket.AF_UNSPEC)
    assert [each["host"] for each in v4] == ["127.0.0.2"]
    assert [each["host"] for each in both] == ["127.0.0.2", "::1"]
    with pytest.raises(OSError, match=r"y\.test"):
        await resolver.resolve("y.test")
    with pytest.raises(ZeroDivisionError):
        await testing.FixedResolver(exception=ZeroDivisionError()).resolve("x.test")
    assert resolver.calls == ["x.test", "x.test", "y.test"]
    await resolver.close()
    assert resolver.closed


# --- recorder


class FakeAttempt:
    def __init__(self, request_id: int) -> None:
        self.request_id = request_id


def record(phase: Phase, start: int, end: int, *, request_id: int = 1, **options: Any) -> PhaseRecord:
    common = {
        "phase": phase,
        "start_ns": start * MILLISECOND,
        "duration": (end - start) / 1000,
        "server_address": "x.test",
        "server_port": 443,
        "attributes": {"aiohttp.client.body.outcome": "complete"} if phase is Phase.BODY else {},
        "request_id": request_id,
        "attempt": FakeAttempt(request_id),
    }
    if phase is Phase.REQUEST:
        return RequestRecord(**common, method="GET", **options)
    return PhaseRecord(**common, **options)


GOOD = (
    record(Phase.QUEUE, 0, 1),
    record(Phase.DNS, 1, 3),
    record(Phase.TCP, 3, 4),
    record(Phase.TLS, 4, 6),
    record(Phase.SETUP, 1, 6),
    record(Phase.REQUEST, 0, 9),
    record(Phase.BODY, 9, 12),
)


def recorder_of(*records: PhaseRecord, started: tuple[int, ...] = (1,)) -> testing.PhaseRecorder:
    recorder = testing.PhaseRecorder()
    for request_id in started:
        recorder.on_request_start(FakeAttempt(request_id))
    for each in records:
        recorder(each)
    return recorder


def changed(phase: Phase, **changes: Any) -> list[PhaseRecord]:
    return [dataclasses.replace(each, **changes) if each.phase is phase else each for each in GOOD]


def test_good_story_passes() -> None:
    """A story in which all is well has no complaint."""
    recorder = recorder_of(*GOOD)
    recorder.check_invariants()
    assert recorder.phases() == [each.phase for each in GOOD]
    assert recorder.phases(2) == []
    assert recorder.only(Phase.TLS) is GOOD[3]
    assert recorder.errors() == []
    assert [each.method for each in recorder.requests()] == ["GET"]
    recorder.clear()
    assert recorder.describe() == "no records"


@pytest.mark.parametrize(
    ("complaint", "records"),
    [
        ("ended 0 times", GOOD[:5]),
        ("ended 2 times", (*GOOD, GOOD[5])),
        ("never started", (*GOOD, record(Phase.REQUEST, 0, 1, request_id=7))),
        ("more than one queue", (GOOD[0], *GOOD)),
        ("tls of attempt 1 starts before tcp of attempt 1 ends", changed(Phase.TCP, duration=0.002)),
        ("dns of attempt 1 is not inside connection setup", changed(Phase.DNS, start_ns=0, duration=0.003)),
        ("connection setup of attempt 1 is not inside request", changed(Phase.SETUP, duration=0.5)),
        ("has no connection setup", (*GOOD[:4], *GOOD[5:])),
        ("before its request's headers", changed(Phase.BODY, start_ns=0)),
        ("negative duration", changed(Phase.DNS, duration=-0.001)),
        ("'oops', which is not in its closed list", changed(Phase.DNS, error_type="oops")),
        ("'connection_refused', which is not", changed(Phase.DNS, error_type="connection_refused")),
        ("'refused', which is not", changed(Phase.SETUP, error_type="refused")),
        ("'tcp_oops', which is not", changed(Phase.REQUEST, error_type="tcp_oops")),
        ("'boom: 1', which is not", changed(Phase.REQUEST, error_type="boom: 1")),
        ("is cancelled and has error_type", changed(Phase.TLS, cancelled=True, error_type="timed_out")),
        ("has outcome None", changed(Phase.BODY, attributes={})),
    ],
)
def test_bad_story_is_named(complaint: str, records: Sequence[PhaseRecord]) -> None:
    """Each thing that must never be is found, and said in words beside the whole story."""
    with pytest.raises(AssertionError, match=re.escape(complaint)) as caught:
        recorder_of(*records).check_invariants()
    assert "records:" in str(caught.value)


@pytest.mark.parametrize(
    ("phase", "error_type"),
    [
        (Phase.SETUP, "tcp_connection_refused"),
        (Phase.REQUEST, "dns_host_not_found"),
        (Phase.REQUEST, "503"),
        (Phase.REQUEST, "aiohttp.ServerDisconnectedError"),
        (Phase.REQUEST, "TimeoutError"),
        (Phase.BODY, "aiohttp.ClientPayloadError"),
    ],
)
def test_words_of_the_closed_list_pass(phase: Phase, error_type: str) -> None:
    """Every form of `error.type` that the contract has is accepted."""
    recorder_of(*changed(phase, error_type=error_type)).check_invariants()


def test_background_lookup_stands_alone() -> None:
    """A lookup that outlived its request may end after it."""
    background = record(Phase.DNS, 1, 50, background=True, cancelled=True)
    recorder_of(record(Phase.REQUEST, 0, 9, cancelled=True), background).check_invariants()


def test_only_shows_the_story_when_it_fails() -> None:
    """`only` fails with every record in its message."""
    with pytest.raises(AssertionError, match="expected one tunnel record, got 0") as caught:
        recorder_of(*GOOD).only(Phase.TUNNEL)
    assert "#1 tls" in str(caught.value)


# --- this suite's own plugin

LEAKS = """
import asyncio, logging, os, socket, threading, time, pytest

async def test_fine(): await asyncio.sleep(0)
async def test_task(): globals()["task"] = asyncio.create_task(asyncio.sleep(60))
async def test_unretrieved():
    asyncio.create_task(fail()); await asyncio.sleep(0.01)
async def fail(): raise LookupError
def test_file(): globals()["fd"] = os.open("/dev/null", os.O_RDONLY)
async def test_socket(): globals()["sock"] = socket.socket()
def test_thread(): threading.Thread(target=time.sleep, args=(6,), daemon=True).start()
def test_log(): logging.getLogger("opentelemetry.context").error("Failed to detach context")
@pytest.mark.loops("asyncio")
async def test_timer(): asyncio.get_running_loop().call_later(60, print)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_leaks_turn_a_test_red(tmp_path: Path) -> None:
    """What survives a test fails it, on each loop; a clean test passes."""
    root = Path(__file__).parent.parent
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-q", "-rA"]
    command += [f"--rootdir={tmp_path}", "-c", os.devnull, str(tmp_path / "test_leaks.py")]
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONWARNINGS": ""}
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=50, check=False)
    outcomes: dict[str, set[str]] = {}
    for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) test_leaks.py::(\S+)", done.stdout, re.MULTILINE):
        outcomes.setdefault(name, set()).add(outcome)
    red = {name for name, words in outcomes.items() if words & {"FAILED", "ERROR"}}
    assert {"test_fine[asyncio]", "test_fine[uvloop]"} == outcomes.keys() - red, done.stdout
    assert len(red) == 10, done.stdout
    assert time.monotonic() - started < 45

"""Sites: each handshake ends once, in time; bursts are taken; nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
from asyncio.subprocess import DEVNULL
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from aiohttp_hardened import Settings, TLSSettings, create_session
from aiohttp_hardened.exceptions import SettingsError
from aiohttp_hardened.server import HandshakeRecord, HardenedTCPSite, ServerHandshakeHook
from aiohttp_hardened.timing._figures import figures
from tests.server._served import Address, Mounted, application, serial_shown, serving, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aiohttp_hardened.testing import ThrowawayCA


@pytest.fixture
def mounted(tmp_path: Path, throwaway_ca: ThrowawayCA) -> Mounted:
    return Mounted(tmp_path, throwaway_ca.issue("x.test", "127.0.0.1"))


def attributes_of(record: HandshakeRecord) -> dict[str, Any]:
    """What is the same in each run."""
    changing = ("network.peer.port", "server.port", "tls.cipher")
    return {key: value for key, value in record.attributes.items() if key not in changing}


SEEN = {"network.peer.address": "127.0.0.1", "server.address": "127.0.0.1"}


# --- how a handshake ends


@pytest.mark.parametrize(("version", "word"), [(ssl.TLSVersion.TLSv1_2, "1.2"), (ssl.TLSVersion.TLSv1_3, "1.3")])
async def test_a_handshake_that_succeeds(
    mounted: Mounted, throwaway_ca: ThrowawayCA, version: ssl.TLSVersion, word: str
) -> None:
    """It is told of once, with its version, cipher and both addresses."""
    records: list[HandshakeRecord] = []
    trust = throwaway_ca.client_context()
    trust.maximum_version = version
    async with serving(mounted.context(), hooks=[records.append]) as address:
        await serial_shown(address, trust)
        await until(records, 1)
    (record,) = records
    assert (None, False) == (record.error_type, record.cancelled)
    assert {
        **SEEN,
        "tls.established": True,
        "tls.protocol.name": "tls",
        "tls.protocol.version": word,
        "tls.resumed": False,
    } == attributes_of(record)
    assert address[1] == record.attributes["server.port"]
    assert record.attributes["tls.cipher"]
    assert record.duration > 0


async def test_a_client_that_resumes(mounted: Mounted, throwaway_ca: ThrowawayCA) -> None:
    """The server sees what the client's ticket store gains."""
    records: list[HandshakeRecord] = []
    settings = Settings(tls=TLSSettings(trust="none", ca_files=(throwaway_ca.ca_file,)))
    async with (
        serving(mounted.context(), hooks=[records.append]) as (host, port),
        create_session(settings, hooks=()) as session,
    ):
        for _ in range(2):
            async with session.get(f"https://{host}:{port}/", headers={"Connection": "close"}) as response:
                assert "/" == await response.text()
    assert [False, True] == [record.attributes["tls.resumed"] for record in records]


async def plaintext(address: Address, _: ThrowawayCA) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await until_closed(reader, writer)


async def gone(address: Address, _: ThrowawayCA) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"\x16\x03\x01")
    writer.close()
    await reader.read()
    await writer.wait_closed()


async def reset(address: Address, _: ThrowawayCA) -> None:
    _, writer = await asyncio.open_connection(*address)
    writer.write(b"\x16\x03\x01")
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def silent(address: Address, _: ThrowawayCA) -> None:
    await until_closed(*await asyncio.open_connection(*address))


async def distrustful(address: Address, _: ThrowawayCA) -> None:
    """Say why, as ``openssl s_client`` does; asyncio's own client hangs up without an alert."""
    command = ["openssl", "s_client", "-connect", "{}:{}".format(*address), "-verify_return_error", "-brief"]
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    assert await process.wait() != 0


async def old(address: Address, ca: ThrowawayCA) -> None:
    trust = ca.client_context()
    trust.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection(*address, ssl=trust, server_hostname="x.test")


async def anonymous(address: Address, ca: ThrowawayCA) -> None:
    reader = writer = None
    with pytest.raises((ssl.SSLError, ConnectionError)):  # noqa: PT012  # under TLS 1.3 it comes with the first read
        reader, writer = await asyncio.open_connection(*address, ssl=ca.client_context(), server_hostname="x.test")
        await reader.read()
        raise ConnectionResetError
    if writer is not None:
        writer.close()


async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait until the server has closed the connection."""
    try:
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("client", "options", "words"),
    [
        (plaintext, {}, {"plaintext_peer"}),
        (gone, {}, {"peer_connection_closed"}),
        (reset, {}, {"peer_connection_closed"}),
        (silent, {}, {"timed_out"}),
        (distrustful, {}, {"certificate_authority_invalid"}),
        (old, {"minimum_version": ssl.TLSVersion.TLSv1_3}, {"protocol_version_unsupported"}),
        (anonymous, {"client_ca": True}, {"client_certificate_rejected"}),
    ],
)
async def test_a_handshake_that_fails(
    mounted: Mounted,
    throwaway_ca: ThrowawayCA,
    client: Callable[[Address, ThrowawayCA], Awaitable[None]],
    options: dict[str, Any],
    words: set[str],
) -> None:
    """It ends in one record with a word of the closed list, and a good client is served after it."""
    if options.get("client_ca"):
        options = {"client_ca": throwaway_ca.ca_file}
    records: list[HandshakeRecord] = []
    context = mounted.context(**options)
    async with serving(context, hooks=[records.append], ssl_handshake_timeout=0.3) as address:
        await client(address, throwaway_ca)
        await until(records, 1)
        (record,) = records
        assert record.error_type in words
        assert not record.cancelled
        assert {**SEEN, "tls.established": False} == {**SEEN, **attributes_of(record)}
        trust = throwaway_ca.client_context(throwaway_ca.issue_client("good"))
        assert await serial_shown(address, trust)
        await until(records, 2)
    assert [False, True] == [each.attributes["tls.established"] for each in records]


async def test_a_server_that_ends_gives_up_its_handshakes(mounted: Mounted) -> None:
    """They are cancelled, which is no error, and their connections are closed."""
    records: list[HandshakeRecord] = []
    async with serving(mounted.context(), hooks=[records.append]) as address:
        clients = [await asyncio.open_connection(*address) for _ in range(5)]
        await asyncio.sleep(0.1)
        assert [] == records
    assert [(None, True)] * 5 == [(record.error_type, record.cancelled) for record in records]
    for reader, writer in clients:
        async with asyncio.timeout(20):
            assert b"" == await reader.read()
        writer.close()


async def test_a_hook_that_fails_is_contained(mounted: Mounted, throwaway_ca: ThrowawayCA) -> None:
    """The connection is served, the other hook is called, and the failure is counted."""
    records: list[HandshakeRecord] = []

    def broken(_: HandshakeRecord) -> None:
        raise RuntimeError("broken")

    failures = figures.telemetry_errors
    async with serving(mounted.context(), hooks=[broken, records.append]) as address:
        assert await serial_shown(address, throwaway_ca.client_context())
        await until(records, 1)
    assert failures + 1 == figures.telemetry_errors


# --- many at once


async def test_stalled_handshakes_are_gone_at_the_deadline(mounted: Mounted, throwaway_ca: ThrowawayCA) -> None:
    """500 clients that say nothing lose their connections; a good one is served meanwhile."""
    records: list[HandshakeRecord] = []
    context = mounted.context()
    with ExitStack() as stack:
        async with serving(context, hooks=[records.append], ssl_handshake_timeout=3.0) as address:
            stalled = [stack.enter_context(socket.socket()) for _ in range(500)]
            for each in stalled:
                each.setblocking(False)
                each.connect_ex(address)
            assert await serial_shown(address, throwaway_ca.client_context())
            await until(records, 1)
            assert [True] == [each.attributes["tls.established"] for each in records]
            await until(records, 501)
            assert {"timed_out": 500, None: 1} == {
                word: sum(each.error_type == word for each in records) for word in ("timed_out", None)
            }
            assert [b""] * 500 == [each.recv(1) for each in stalled]
            assert await serial_shown(address, throwaway_ca.client_context())


BURST = 200


def retransmitted(connection: socket.socket) -> int:
    """How many segments of a connection were sent again; until it is used, these are SYNs."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("I", info, 100)[0])


async def burst(address: Address) -> int:
    """Connect that often before the server's loop gets its turn; return how many connects had to try again."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(BURST)]
        for each in clients:
            each.setblocking(False)
            each.connect_ex(address)
        async with asyncio.timeout(30):
            # Writable is connected: a SYN that was dropped is sent again after a second.
            await asyncio.gather(*(loop.sock_sendall(each, b"GET / HTTP/1.1\r\n") for each in clients))
        return sum(retransmitted(each) > 0 for each in clients)


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux shows it")
async def test_a_burst_is_accepted_without_retransmissions() -> None:
    """200 connects at once: none waits for its SYN here; with aiohttp's backlog of 128 and asyncio's of 100 many do."""
    async with serving(None) as address:
        assert 0 == await burst(address)
    runner = web.AppRunner(application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        assert 30 < await burst(runner.addresses[0])
    finally:
        await runner.cleanup()
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    async with server:
        assert 50 < await burst(server.sockets[0].getsockname())


# --- what else a site is


async def test_a_backlog_that_the_kernel_cuts_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """The warning says what is asked for, and what holds."""
    with caplog.at_level(logging.WARNING, "aiohttp_hardened"):
        async with serving(None, backlog=10_000_000):
            pass
    assert "a backlog of 10000000 is cut to " in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backlog": 0}, "server.backlog is 0; it must be a whole number, 1 or more"),
        ({"ssl_handshake_timeout": 0}, "server.ssl_handshake_timeout is 0"),
        ({"ssl_handshake_timeout": float("nan")}, "server.ssl_handshake_timeout is nan"),
        ({"ssl_context": "tls.crt"}, "server.ssl_context is 'tls.crt'; it must be an ssl.SSLContext"),
        ({"ssl_context": ssl.create_default_context()}, "server.ssl_context is a context for clients"),
    ],
)
async def test_a_wrong_value_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    """The error names the field, what was given and what is allowed."""
    runner = web.AppRunner(application())
    await runner.setup()
    try:
        with pytest.raises(SettingsError) as caught:
            HardenedTCPSite(runner, "127.0.0.1", 0, **options)
    finally:
        await runner.cleanup()
    assert said in str(caught.value)


async def test_it_is_a_site(mounted: Mounted) -> None:
    """A runner lists it, shows its address, and stops it."""
    runner = web.AppRunner(application())
    await runner.setup()
    site = HardenedTCPSite(runner, "127.0.0.1", 0, ssl_context=mounted.context())
    assert isinstance(site, web.BaseSite)
    await site.start()
    assert [site] == list(runner.sites)
    host, port = runner.addresses[0]
    assert f"https://{host}:{port}" == site.name
    await runner.cleanup()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, port)


# --- telemetry


async def test_spans_and_metrics_of_handshakes(mounted: Mounted, throwaway_ca: ThrowawayCA) -> None:
    """One INTERNAL span at the root and one point of the histogram for each handshake, with the same error."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    hook = ServerHandshakeHook(tracer_provider=tracers, meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    records: list[HandshakeRecord] = []
    async with serving(mounted.context(), hooks=[hook, records.append]) as address:
        assert await serial_shown(address, throwaway_ca.client_context())
        await plaintext(address, throwaway_ca)
        await until(records, 2)
    good, bad = exporter.get_finished_spans()
    assert ("TLS handshake", "TLS handshake") == (good.name, bad.name)
    assert (None, None) == (good.parent, bad.parent)
    assert [SpanKind.INTERNAL] * 2 == [good.kind, bad.kind]
    assert "error.type" not in (good.attributes or {})
    assert "plaintext_peer" == (bad.attributes or {})["error.type"]
    assert StatusCode.ERROR is bad.status.status_code
    data: Any = reader.get_metrics_data()
    points = [
        (point.count, dict(point.attributes))
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "aiohttp.server.tls_handshake.duration"
        for point in metric.data.data_points
    ]
    assert [
        (1, {"tls.protocol.version": "1.3", "tls.resumed": False}),
        (1, {"error.type": "plaintext_peer"}),
    ] == points

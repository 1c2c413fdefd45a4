"""The shared context in everybody's hands: sockets, start_tls, other clients, servers; and nobody can change it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened import SettingsError, TLSSettings
from aiohttp_hardened.testing import TLSServer
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.tls import _registry
from aiohttp_hardened.tls._context import SharedSSLContext
from aiohttp_hardened.tls._trust import new_truststore_context
from tests.tls._raw import ask, in_memory, needs_openssl, s_server, server_context, shared, tls_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp_hardened.testing import ThrowawayCA


@pytest.mark.parametrize("name", [name for name in dir(ssl.SSLContext) if name.startswith(("set_", "load_"))])
def test_whatever_sets_or_loads_is_refused(name: str, throwaway_ca: ThrowawayCA) -> None:
    """By kind: also what this list did not know when it was written (CASES 30)."""
    with pytest.raises(SettingsError, match="reload_tls"):
        getattr(shared(throwaway_ca), name)("anything")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in dir(ssl.SSLContext)
        if not name.startswith("_")
        and not callable(getattr(ssl.SSLContext, name))
        and hasattr(ssl.create_default_context(), name)
    ],
)
def test_attributes_are_those_of_the_current_context(name: str, throwaway_ca: ThrowawayCA) -> None:
    """They are shown after a swap too, and saying what is so already is no change."""
    context = SharedSSLContext(throwaway_ca.client_context())
    inner = throwaway_ca.client_context()
    inner.minimum_version = ssl.TLSVersion.TLSv1_3
    inner.check_hostname = False
    inner.verify_mode = ssl.CERT_OPTIONAL
    context.swap(inner)
    assert getattr(inner, name) == getattr(context, name)
    setattr(context, name, getattr(inner, name))


def test_a_swap_tells_its_listeners_and_survives_them(
    throwaway_ca: ThrowawayCA, caplog: pytest.LogCaptureFixture
) -> None:
    """Held weakly, bound methods too; one that fails is logged, and the others are told."""
    context = SharedSSLContext(throwaway_ca.client_context())
    told: list[str] = []

    class Pool:
        def __init__(self, name: str) -> None:
            self.name = name

        def swapped(self) -> None:
            told.append(f"{self.name} {context.generation}")

    def broken() -> None:
        raise RuntimeError("no")

    pools = [Pool("a"), Pool("b")]
    context.on_swap(broken)
    for pool in pools:
        context.on_swap(pool.swapped)
    del pools[0], pool
    gc.collect()
    with caplog.at_level(logging.ERROR, "aiohttp_hardened"):
        context.swap(throwaway_ca.client_context())
    assert told == ["b 2"]
    assert "a listener" in caplog.text


def test_listeners_that_are_gone_are_not_kept(throwaway_ca: ThrowawayCA) -> None:
    """A service that makes a session per request never swaps, and holds no trace of each."""

    class Listener:
        def told(self) -> None:
            """Take note."""

    context = shared(throwaway_ca, name="listened to")
    keeper = Listener()
    context.on_swap(keeper.told)
    for _ in range(1000):
        context.on_swap(Listener().told)
    assert len(context._listeners) < 20
    assert any(each() == keeper.told for each in context._listeners)


def test_contexts_go_with_their_users(throwaway_ca: ThrowawayCA) -> None:
    """Nothing but the few that were used last is kept, whatever was built and swapped."""
    before = figures.ssl_contexts
    for number in range(20):
        context = shared(throwaway_ca, name=f"gone {number}")
    gone = weakref.ref(context)
    context.swap(throwaway_ca.client_context())
    del context
    gc.collect()
    assert len(_registry._kept) == 8
    assert figures.ssl_contexts <= before + 8
    _registry._kept.clear()
    gc.collect()
    assert gone() is None
    assert figures.ssl_contexts <= before


# -- sockets


@pytest.fixture
def blocking_server(throwaway_ca: ThrowawayCA) -> Iterator[tuple[int, SharedSSLContext]]:
    """A server of plain sockets with a shared context; it tells the client which certificate it has."""
    context = SharedSSLContext(server_context(throwaway_ca.issue("x.test")))
    listening = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)

    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            # A client that does not like the certificate is gone, with or without a word.
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.settimeout(5)
                    connection.sendall(b"hello")

    thread = threading.Thread(target=serve)
    thread.start()
    yield listening.getsockname()[1], context
    stopped.set()
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(5)


@pytest.mark.parametrize("connect_first", [True, False])
def test_plain_sockets(
    connect_first: bool, blocking_server: tuple[int, SharedSSLContext], throwaway_ca: ThrowawayCA
) -> None:
    """A connected socket is wrapped, and a wrapped one connected; both verify, both show the shared context."""
    port, _ = blocking_server
    context = shared(throwaway_ca)
    for name in ("x.test.", "evil.test"):
        plain = socket.socket()
        plain.settimeout(5)
        if connect_first:
            plain.connect(("127.0.0.1", port))
        try:
            if connect_first:
                wrapped = context.wrap_socket(plain, server_hostname=name)
            else:
                wrapped = context.wrap_socket(plain, server_hostname=name)
                plain = wrapped
                wrapped.connect(("127.0.0.1", port))
        except ssl.SSLCertVerificationError:
            assert name == "evil.test"
            plain.close()
            continue
        with wrapped:
            assert wrapped.recv(5) == b"hello"
            assert wrapped.context is context
            assert wrapped.server_hostname == "x.test"
    with pytest.raises(SettingsError):
        wrapped.context.check_hostname = False


def test_a_listening_socket_accepts_with_the_current_generation(
    blocking_server: tuple[int, SharedSSLContext], throwaway_ca: ThrowawayCA
) -> None:
    """A server's swap reaches the socket that it listens on."""
    port, server = blocking_server
    new = throwaway_ca.issue("x.test")
    serials = []
    for _ in range(2):
        with (
            socket.create_connection(("127.0.0.1", port), 5) as plain,
            shared(throwaway_ca).wrap_socket(plain, server_hostname="x.test") as wrapped,
        ):
            serials.append((wrapped.getpeercert() or {})["serialNumber"])
        server.swap(server_context(new))
    assert serials[0] != serials[1] == new.serial_number


# -- servers on a loop


async def test_a_server_swaps_under_connections(throwaway_ca: ThrowawayCA) -> None:
    """New connections see the new certificate; one that stands goes on."""
    old, new = throwaway_ca.issue("x.test"), throwaway_ca.issue("x.test")
    context = SharedSSLContext(server_context(old))
    client = shared(throwaway_ca)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    serials = []
    streams = []
    for _ in range(2):
        streams.append(await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="x.test"))
        serials.append(streams[-1][1].get_extra_info("peercert")["serialNumber"])
        context.swap(server_context(new))
    for reader, writer in streams:
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        writer.close()
        await writer.wait_closed()
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0.05)
    assert serials == [old.serial_number, new.serial_number]


# -- other clients


async def upgrade(context: ssl.SSLContext, port: int) -> ssl.SSLObject:
    """Speak as asyncpg does: a request in plaintext, one byte in answer, then start_tls."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()

    class Ask(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            answered.set_result(data)

    transport, _ = await loop.create_connection(Ask, "127.0.0.1", port)
    transport.write(b"\0\0\0\x08\x04\xd2\x16\x2f")
    assert await answered == b"S"
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    upgraded = await loop.start_tls(transport, protocol, context, server_hostname="x.test")
    assert upgraded is not None
    reader.set_transport(upgraded)
    assert await reader.readexactly(5) == b"ready"
    seen: ssl.SSLObject = upgraded.get_extra_info("ssl_object")
    upgraded.close()
    await asyncio.sleep(0.05)
    return seen


async def test_a_database_client_upgrades_with_it(throwaway_ca: ThrowawayCA) -> None:
    """``loop.start_tls`` in the manner of asyncpg: verified, not resumed, and no HTTP offered."""
    context = shared(throwaway_ca)
    theirs = server_context(throwaway_ca.issue("x.test"))
    theirs.set_alpn_protocols(["http/1.1"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"S")
        await writer.start_tls(theirs)
        writer.write(b"ready")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        for _ in range(2):
            seen = await upgrade(context, server.sockets[0].getsockname()[1])
            assert seen.context is context
            assert not seen.session_reused
            assert seen.selected_alpn_protocol() is None


@needs_openssl
async def test_alpn_is_offered_where_http_is_spoken(throwaway_ca: ThrowawayCA) -> None:
    """Inside our attempts ``http/1.1``; to others nothing, for PostgreSQL 17 refuses a protocol that is not its own."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    context = shared(throwaway_ca)
    certificate = throwaway_ca.issue("x.test")
    async with s_server(certificate, "-alpn", "http/1.1,h2") as port:
        answers = [(await ask(context, port, outside=outside)).alpn for outside in (False, True, False)]
        assert answers == ["http/1.1", None, "http/1.1"]
    async with s_server(certificate, "-alpn", "postgresql") as port:
        assert (await ask(context, port, outside=True)).alpn is None
        with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
            await ask(context, port)


async def test_httpx_takes_it_as_verify(throwaway_ca: ThrowawayCA) -> None:
    """``verify=context``: its ``set_alpn_protocols(["http/1.1"])`` before each connect is no change."""
    httpx = pytest.importorskip("httpx")
    context = shared(throwaway_ca)
    async with TLSServer(throwaway_ca.issue("127.0.0.1")) as server, httpx.AsyncClient(verify=context) as client:
        assert (await client.get(server.url())).status_code == 200
    async with TLSServer(throwaway_ca.issue("evil.test")) as server, httpx.AsyncClient(verify=context) as client:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(server.url())


@pytest.mark.loops("asyncio")
async def test_aiofastnet_goes_through_it(throwaway_ca: ThrowawayCA) -> None:
    """It would look into the facade's own, empty context, but for its switch to ``wrap_bio``."""
    aiofastnet = pytest.importorskip("aiofastnet")
    context = shared(throwaway_ca)
    loop = asyncio.get_running_loop()
    async with tls_server(server_context(throwaway_ca.issue("x.test"))) as port:
        reader = asyncio.StreamReader()
        transport, _ = await aiofastnet.create_connection(
            loop, lambda: asyncio.StreamReaderProtocol(reader), "127.0.0.1", port, ssl=context, server_hostname="x.test"
        )
        transport.write(b"GET / HTTP/1.0\r\n\r\n")
        assert b"200" in await reader.read()
        transport.close()


# -- truststore (macOS and Windows; it runs on Linux too)


@pytest.fixture
def system_context(throwaway_ca: ThrowawayCA) -> SharedSSLContext:
    """A shared context over truststore, which here trusts the throwaway authority as well."""
    pytest.importorskip("truststore")
    inner = new_truststore_context()
    inner.load_verify_locations(cafile=str(throwaway_ca.ca_file))
    return SharedSSLContext(inner)


async def test_truststore_behind_the_facade(system_context: SharedSSLContext, throwaway_ca: ThrowawayCA) -> None:
    """Verified, timed and never resumed; a connection shows the facade (CASES 10)."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with tls_server(server_context(throwaway_ca.issue("x.test"))) as port:
        for _ in range(2):
            answer = await ask(system_context, port)
            assert not answer.resumed
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(system_context, port, name="evil.test")
    ours, _ = in_memory(system_context, server_context(throwaway_ca.issue("x.test")), "x.test")
    assert ours.context is system_context
    assert system_context.verify_mode is ssl.CERT_REQUIRED


def test_truststore_that_was_switched_off_is_noticed(
    system_context: SharedSSLContext, throwaway_ca: ThrowawayCA
) -> None:
    """A handshake behind which verification is off does not stand (CASES 10)."""
    inner: Any = system_context._current.generation.inner
    inner.check_hostname = False
    inner.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match="switched off"):
        in_memory(system_context, server_context(throwaway_ca.issue("x.test")), "x.test")


def test_making_a_connection_costs_microseconds(throwaway_ca: ThrowawayCA) -> None:
    """Fifty ``wrap_bio`` with the system's trust take no 30 ms each, as truststore does on Linux (CASES 10)."""
    context = _registry.context_for(TLSSettings(trust="system"))
    took = []
    for _ in range(50):
        start = time.perf_counter()
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="x.test")
        took.append(time.perf_counter() - start)
    assert sorted(took)[25] < 0.002

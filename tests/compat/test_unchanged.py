"""With `instrument()` aiohttp does what it does without: types, exceptions, warnings, and bytes on the wire.

Each scenario runs twice against the same servers. Only propagation headers and notes may differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import ssl
import warnings
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from aiohttp_hardened import instrument, uninstrument
from aiohttp_hardened.telemetry import MetricHook, SpanHook
from aiohttp_hardened.testing import (
    HTTPServer,
    PhaseRecorder,
    ThrowawayCA,
    TLSServer,
    dead_address,
    raw_server,
    refusing_address,
    scripted_proxy,
    stalled_tls,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

PROPAGATED: Final = (b"traceparent", b"tracestate", b"baggage")
SHORT: Final = aiohttp.ClientTimeout(total=0.2)


class World:
    """Where requests go, and what is seen of them."""

    def __init__(self, ca: ThrowawayCA) -> None:
        self.context = ca.client_context()
        self.wire: list[bytearray] = []
        """What each connection brought to the plain server, in the order in which they came."""
        self.seen: list[str] = []
        self.tls_requests: list[web.BaseRequest] = []
        self.plain = self.tls = self.other = self.refusing = self.dead = self.stalled = self.garbage = self.proxy = ""

    def note(self, *things: Any) -> None:
        """Keep what things are called, without what differs from run to run."""
        for each in things:
            text = re.sub(r"0x[0-9a-f]+", "0x", repr(each))
            text = re.sub(r"(, )?'(traceparent|tracestate)': '[^']*'", "", text)
            text = re.sub(r"'(Date|Sec-WebSocket-Key)': '[^']*'", "", text)
            self.seen.append(re.sub(r"(raddr|laddr)=\([^)]*\)|fd=\d+", "", text))

    def failed(self, exc: BaseException) -> None:
        self.note(type(exc), str(exc), exc.args, type(exc).__mro__)
        for linked in (exc.__cause__, exc.__context__):
            self.note(type(linked), str(linked))

    async def response(self, response: aiohttp.ClientResponse) -> None:
        """Keep everything public of a response, open and read."""
        connection = response.connection
        if connection is not None:
            transport: Any = connection.transport
            self.note(type(connection), type(connection.protocol), type(transport))
            self.note(type(transport.get_extra_info("ssl_object")), type(transport.get_extra_info("sslcontext")))
        self.note(type(response), response, type(response.content), type(response.headers), response.version)
        self.note(response.request_info, response.history, response.cookies, response.url, response.raw_headers[:1])
        self.note(await response.read(), response.closed, response.connection)


async def get(world: World, method: str, url: str, session: dict[str, Any] | None = None, **options: Any) -> None:
    """Make two requests with one session, and tell all of them."""
    async with aiohttp.ClientSession(**(session or {})) as made:
        world.note(type(made), type(made.connector), sorted(vars(made.connector).keys() - {"_hardening"}), made.timeout)
        world.note(type(made.cookie_jar), made.closed)
        for _ in range(2):
            try:
                async with made.request(method, url, **options) as response:
                    await world.response(response)
            except Exception as exc:  # noqa: BLE001  (that is what is compared)
                world.failed(exc)
    world.note(made.closed)


def asks(method: str, where: Callable[[World], str], **options: Any) -> Callable[[World], Awaitable[None]]:
    """Return a scenario that is nothing but a request."""

    def scenario(world: World) -> Awaitable[None]:
        given = {name: each(world) if callable(each) else each for name, each in options.items()}
        return get(world, method, where(world), **given)

    return scenario


def multipart(_: World) -> aiohttp.MultipartWriter:
    writer = aiohttp.MultipartWriter("form-data", boundary="boundary")
    writer.append("part")
    return writer


def chunks(_: World) -> Any:
    async def generate() -> AsyncGenerator[bytes]:
        yield b"first"
        yield b"second"

    return generate()


async def cancelled(world: World) -> None:
    """Cancelled with a message while the server takes its time."""
    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(session.get(world.plain + "/slow?seconds=5"))
        while not world.wire:  # noqa: ASYNC110  # a tap has no event
            await asyncio.sleep(0.01)
        task.cancel("enough")
        try:
            await task
        except asyncio.CancelledError as exc:
            world.failed(exc)
        world.note(task.cancelled(), task.cancelling())


async def the_callers_own_timeout(world: World) -> None:
    """An `asyncio.timeout` around the request."""
    async with aiohttp.ClientSession() as session:
        try:
            async with asyncio.timeout(0.1):
                await session.get(world.plain + "/slow?seconds=5")
        except TimeoutError as exc:
            world.failed(exc)


async def websockets(world: World) -> None:
    """One that is accepted, and one that is refused."""
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(world.tls + "/ws", ssl=world.context) as socket:
            world.note(type(socket), socket.protocol, socket.compress)
            await socket.send_str("hello")
            world.note(await socket.receive(), await socket.close(), socket.close_code, socket.exception())
        try:
            await session.ws_connect(world.plain + "/ws?refuse=1")
        except aiohttp.ClientError as exc:
            world.failed(exc)


async def closed(world: World) -> None:
    """A session, and a connector, that are closed already."""
    session = aiohttp.ClientSession()
    await session.close()
    connector = aiohttp.TCPConnector()
    other = aiohttp.ClientSession(connector=connector)
    await connector.close()
    for each in (session, other):
        try:
            await each.get(world.plain)
        except (RuntimeError, aiohttp.ClientError) as exc:
            world.failed(exc)
        world.note(each.closed, each.connector)
    await other.close()


async def forgotten(world: World) -> None:
    """What aiohttp says of a session and a response that nobody closed."""
    session = aiohttp.ClientSession()
    response = await session.get(world.plain + "/stream?chunks=2&seconds=0.01")
    world.note(response.status)
    del response
    gc.collect()
    await asyncio.sleep(0.05)
    connector = session.connector
    del session
    gc.collect()
    assert connector is not None
    await connector.close()


async def deprecated(world: World) -> None:
    """What aiohttp discourages: inheritance, old arguments, `session.loop`, a float as a timeout."""

    class TheirSession(aiohttp.ClientSession):
        pass

    for options in ({}, {"timeout": 5.0}, {"read_timeout": 5.0}, {"conn_timeout": 5.0}, {"version": "1.1"}):
        try:
            async with TheirSession(**options) as session:  # type: ignore[arg-type]
                world.note(session.timeout, session.loop is asyncio.get_running_loop())
                async with session.get(world.plain, timeout=5.0, verify_ssl=True) as response:  # type: ignore[arg-type]
                    await world.response(response)
        except Exception as exc:  # noqa: BLE001  (that is what is compared)
            world.failed(exc)


async def wrong_arguments(world: World) -> None:
    """What the constructor and the request refuse."""
    wrong: list[dict[str, Any]] = [{"no_such": 1}, {"base_url": "relative"}, {"connector": "none"}, {"timeout": "long"}]
    for options in wrong:
        try:
            async with aiohttp.ClientSession(**options) as session:
                await session.get(world.plain)
        except Exception as exc:  # noqa: BLE001  (that is what is compared)
            world.failed(exc)
    async with aiohttp.ClientSession() as session:
        for url, given in [(world.plain, {"data": 1, "json": 2}), ("ftp://x", {}), ("http:///", {}), ("nonsense", {})]:
            try:
                await session.get(url, **given)  # type: ignore[arg-type]
            except Exception as exc:  # noqa: BLE001  (that is what is compared)
                world.failed(exc)


async def a_middleware(world: World) -> None:
    """One that sends twice, and sees the request."""

    async def twice(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        world.note(type(request), request.method, request.url, request.headers)
        (await handler(request)).release()
        return await handler(request)

    await get(world, "PUT", world.plain + "/status/200", {"middlewares": [twice]}, data=b"x")


async def their_classes(world: World) -> None:
    """A request, a response and a connector of classes of the user's own."""

    class TheirResponse(aiohttp.ClientResponse):
        pass

    class TheirRequest(aiohttp.ClientRequest):
        pass

    class TheirConnector(aiohttp.TCPConnector):
        __slots__ = ()

    classes = {"request_class": TheirRequest, "response_class": TheirResponse, "connector": TheirConnector(limit=1)}
    await get(world, "GET", world.plain + "/status/200", classes)


async def dead_keep_alive(world: World) -> None:
    """A connection that dies between two requests is made anew behind the caller's back."""
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.get(world.plain + "/close-keepalive") as response:
                await world.response(response)


SCENARIOS: Final[dict[str, Callable[[World], Awaitable[None]]]] = {
    "get": asks("GET", lambda world: world.plain + "/status/200", params={"a": "b c"}, headers={"X-Req": "1"}),
    "head": asks("HEAD", lambda world: world.plain),
    "https": asks("GET", lambda world: world.tls + "/status/200", ssl=lambda world: world.context),
    "json": asks("POST", lambda world: world.plain + "/status/200", json={"a": [1, None]}),
    "form": asks("POST", lambda world: world.plain + "/status/200", data={"a": "b", "c": "d"}),
    "multipart": asks("POST", lambda world: world.plain + "/status/200", data=multipart),
    "chunked": asks("PUT", lambda world: world.plain + "/status/200", data=chunks),
    "compressed": asks("POST", lambda world: world.plain + "/status/200", data=b"x" * 100, compress="deflate"),
    "expect": asks("POST", lambda world: world.plain + "/status/200", data=b"x", expect100=True),
    "unknown method": asks("BREW", lambda world: world.plain + "/status/200"),
    "session defaults": asks(
        "GET",
        lambda world: world.plain + "/status/200",
        session={"headers": {"A": "1"}, "cookies": {"c": "1"}, "cookie_jar": None},
        skip_auto_headers=["User-Agent"],
    ),
    "base_url": asks("GET", lambda _: "status/200", session=lambda world: {"base_url": world.plain + "/"}),
    "redirect": asks("GET", lambda world: f"{world.plain}/redirect?to={world.plain}/status/200"),
    "redirect to another origin": asks(
        "POST", lambda world: f"{world.plain}/redirect?to={world.other}/status/200", headers={"Authorization": "secret"}
    ),
    "redirect for ever": asks(
        "GET", lambda world: f"{world.plain}/redirect?to={world.plain}/redirect%3Fto=/", max_redirects=1
    ),
    "404": asks("GET", lambda world: world.plain + "/status/404"),
    "raise_for_status": asks("GET", lambda world: world.plain + "/status/503", raise_for_status=True),
    "refused": asks("GET", lambda world: world.refusing),
    "no such name": asks("GET", lambda _: "http://no-such-name.invalid/"),
    "total": asks("GET", lambda world: world.plain + "/slow?seconds=5", timeout=SHORT),
    "sock_read": asks(
        "GET", lambda world: world.plain + "/slow?seconds=5", timeout=aiohttp.ClientTimeout(sock_read=0.2)
    ),
    "sock_read in the body": asks(
        "GET", lambda world: world.plain + "/stream?seconds=5", timeout=aiohttp.ClientTimeout(sock_read=0.2)
    ),
    "connect, dead address": asks("GET", lambda world: world.dead, timeout=aiohttp.ClientTimeout(connect=0.2)),
    "sock_connect, dead address": asks(
        "GET", lambda world: world.dead, timeout=aiohttp.ClientTimeout(sock_connect=0.2)
    ),
    "sock_connect, stalled TLS": asks(
        "GET",
        lambda world: world.stalled,
        timeout=aiohttp.ClientTimeout(sock_connect=0.2),
        ssl=lambda world: world.context,
    ),
    "total, stalled TLS": asks("GET", lambda world: world.stalled, timeout=SHORT, ssl=lambda world: world.context),
    "unknown authority": asks("GET", lambda world: world.tls),
    "wrong name": asks("GET", lambda world: world.tls, ssl=lambda world: world.context, server_hostname="evil.test"),
    "fingerprint": asks("GET", lambda world: world.tls, ssl=aiohttp.Fingerprint(b"0" * 32)),
    "unverified": asks("GET", lambda world: world.tls + "/status/200", ssl=False),
    "plaintext peer": asks(
        "GET", lambda world: world.plain.replace("http:", "https:"), ssl=lambda world: world.context
    ),
    "cut body": asks("GET", lambda world: world.plain + "/cut"),
    "garbage": asks("GET", lambda world: world.garbage),
    "refusing proxy": asks(
        "GET", lambda world: world.tls, proxy=lambda world: world.proxy, ssl=lambda world: world.context
    ),
    "dead keep-alive": dead_keep_alive,
    "cancelled": cancelled,
    "asyncio.timeout": the_callers_own_timeout,
    "websockets": websockets,
    "closed": closed,
    "forgotten": forgotten,
    "deprecated": deprecated,
    "wrong arguments": wrong_arguments,
    "middleware": a_middleware,
    "classes": their_classes,
}


@asynccontextmanager
async def worlds(ca: ThrowawayCA) -> AsyncGenerator[World]:
    """Run every server; what is sent to the plain one goes through a tap."""
    world = World(ca)

    async def tap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken = bytearray()
        world.wire.append(taken)
        behind_reader, behind_writer = await asyncio.open_connection(server.host, server.port)

        async def back() -> None:
            with contextlib.suppress(OSError, RuntimeError):  # the client went first
                while data := await behind_reader.read(65536):
                    writer.write(data)
                writer.write_eof()

        pump = asyncio.create_task(back())
        try:
            while data := await reader.read(65536):
                taken += data
                behind_writer.write(data)
            behind_writer.write_eof()
            await pump
        finally:
            behind_writer.transport.abort()
            pump.cancel()

    async def garble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SMTP 220 ready\r\n\r\n")

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(HTTPServer())
        tls = await stack.enter_async_context(TLSServer(ca.issue("127.0.0.1")))
        other = await stack.enter_async_context(HTTPServer())
        address = await stack.enter_async_context(raw_server(tap))
        garbage = await stack.enter_async_context(raw_server(garble))
        refusing, dead, stalled = (
            stack.enter_context(each()) for each in (refusing_address, dead_address, stalled_tls)
        )
        world.proxy = await stack.enter_async_context(
            scripted_proxy(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        )
        world.plain, world.garbage = (f"http://{host}:{port}" for host, port in (address, garbage))
        world.tls, world.other, world.tls_requests = tls.url(""), other.url(""), tls.requests
        world.refusing, world.dead = (f"http://{each.host}:{each.port}/" for each in (refusing, dead))
        world.stalled = f"https://{stalled.host}:{stalled.port}/"
        yield world


async def run(scenario: Callable[[World], Awaitable[None]], world: World) -> dict[str, Any]:
    """Run a scenario; return all that was seen of it."""
    loop = asyncio.get_running_loop()
    world.wire, world.seen, complaints = [], [], []
    world.tls_requests.clear()
    loop.set_exception_handler(lambda _, context: complaints.append(sorted(context)))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        await scenario(world)
        gc.collect()
        await asyncio.sleep(0)
    return {
        "seen": world.seen,
        "complaints": complaints,
        "warnings": [(each.category, unaddressed(each.message), each.filename, each.lineno) for each in warned],
        "wire": [without_propagation(bytes(each)) for each in world.wire],
        "wire behind TLS": [
            without_propagation(b"\r\n".join(b": ".join(pair) for pair in each.raw_headers))
            for each in world.tls_requests
        ],
        "propagated": any(PROPAGATED[0] in each for each in world.wire),
    }


def unaddressed(message: Warning | str) -> str:
    return re.sub(r"0x[0-9a-f]+|(raddr|laddr)=\([^)]*\)|fd=\d+", "", str(message))


def without_propagation(sent: bytes) -> bytes:
    """Return what was sent, without what is random or ours."""
    if sent.startswith(b"\x16\x03"):
        return b"a TLS handshake"
    return b"\r\n".join(
        line for line in sent.split(b"\r\n") if not line.lower().startswith((*PROPAGATED, b"sec-websocket-key"))
    )


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_same(name: str, throwaway_ca: ThrowawayCA) -> None:
    """Nothing of what is public differs, but for the header that propagates the trace."""
    recorder = PhaseRecorder()
    tracers = TracerProvider(shutdown_on_exit=False)
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    async with worlds(throwaway_ca) as world:
        plain = await run(SCENARIOS[name], world)
        instrument(hooks=[SpanHook(tracer_provider=tracers), MetricHook(meter_provider=meters), recorder])
        try:
            told = await run(SCENARIOS[name], world)
        finally:
            uninstrument()
        again = await run(SCENARIOS[name], world)
    assert plain == again
    propagated, silent = told.pop("propagated"), plain.pop("propagated")
    for what, seen in plain.items():
        assert seen == told[what], what
    assert not silent
    assert propagated == bool(told["wire"] and any(told["wire"]) and b"HTTP/1.1" in told["wire"][0])
    assert isinstance(world.context, ssl.SSLContext)

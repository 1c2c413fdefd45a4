"""Every private name of aiohttp that we touch, proved on aiohttp's own classes.

What is here goes red when an aiohttp release moves something under us, and says what;
the rest of the suite would then say where it hurts. Nothing of ours runs in these tests,
but for the ones that compare our files with their own docstrings.
"""

# ruff: noqa: ASYNC109 (the signatures are aiohttp's)

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import re
import socket
import ssl
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import client_proto, helpers
from aiohttp.client import DEFAULT_TIMEOUT
from aiohttp.client_exceptions import ClientProxyConnectionError
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import BaseConnector, Connection
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.tracing import Trace
from yarl import URL

from aiohttp_hardened import _connector, _foreign, _instrument, _protocol
from aiohttp_hardened.testing import (
    FixedResolver,
    HTTPServer,
    ThrowawayCA,
    TLSServer,
    dead_address,
    refusing_address,
    scripted_proxy,
    throwaway_ca,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

SIGNATURES = {
    (BaseConnector, "connect"): "(self, req, traces, timeout)",
    (BaseConnector, "_wait_for_available_connection"): "(self, key, traces)",
    (BaseConnector, "_create_connection"): "(self, req, traces, timeout)",
    (BaseConnector, "_release"): "(self, key, protocol, *, should_close=False)",
    (BaseConnector, "_close"): "(self, *, abort_ssl=False)",
    (aiohttp.TCPConnector, "_resolve_host"): "(self, host, port, traces=None)",
    (aiohttp.TCPConnector, "_resolve_host_with_throttle"): "(self, key, host, port, futures, traces)",
    (aiohttp.TCPConnector, "_create_connection"): "(self, req, traces, timeout)",
    (aiohttp.TCPConnector, "_create_direct_connection"): "(self, req, traces, timeout, *, client_error=...)",
    (aiohttp.TCPConnector, "_create_proxy_connection"): "(self, req, traces, timeout)",
    (aiohttp.TCPConnector, "_wrap_create_connection"): (
        "(self, *args, addr_infos, req, timeout, client_error=..., **kwargs)"
    ),
    (aiohttp.TCPConnector, "_start_tls_connection"): "(self, underlying_transport, req, timeout, client_error=...)",
    (aiohttp.TCPConnector, "_get_ssl_context"): "(self, req)",
    (aiohttp.TCPConnector, "_get_fingerprint"): "(self, req)",
    (aiohttp.TCPConnector, "_close"): "(self, *, abort_ssl=False)",
    (ResponseHandler, "feed_data"): "(self, data, size=0)",
    (ResponseHandler, "set_exception"): "(self, exc, exc_cause=...)",
    (ResponseHandler, "connection_lost"): "(self, exc)",
    (ResponseHandler, "start_timeout"): "(self)",
    (ResponseHandler, "set_parser"): "(self, parser, payload, data_received_cb=None)",
    (ResponseHandler, "resume_reading"): "(self, resume_parser=...)",
    (Connection, "add_callback"): "(self, callback)",
}
COROUTINES = {
    "connect",
    "_wait_for_available_connection",
    "_create_connection",
    "_resolve_host",
    "_resolve_host_with_throttle",
    "_create_direct_connection",
    "_create_proxy_connection",
    "_wrap_create_connection",
    "_start_tls_connection",
}
NAME = re.compile(r"``(?:[\w.]+\.)?(_[A-Za-z]\w*)``")


@pytest.fixture(scope="module")
def ca() -> Generator[ThrowawayCA]:
    with throwaway_ca() as made:
        yield made


def described(function: Callable[..., object]) -> str:
    """Write a signature without annotations, and defaults only where they are plain values."""
    parameters = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=parameter.default if parameter.default in (inspect.Parameter.empty, None, 0, False) else ...,
        )
        for parameter in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(parameters)).replace("Ellipsis", "...")


# --- what is listed


def private_names(path: str) -> set[str]:
    """Find the private names of objects that a file reads, writes, calls or overrides."""
    nodes = list(ast.walk(ast.parse(Path(path).read_text("utf-8"))))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


async def test_connector_lists_what_it_touches() -> None:
    """The docstring of the one file that overrides internals names each of them, and nothing else."""
    async with aiohttp.TCPConnector() as connector:
        theirs = {*dir(connector), *dir(ClientRequest), *ClientRequest.__annotations__, "_timer"}
        theirs |= {"_trace_config", "_trace_config_ctx"}
        touched = private_names(_connector.__file__) & theirs
    assert set(NAME.findall(_connector.__doc__ or "")) == touched


async def test_protocol_lists_what_it_touches() -> None:
    """So does the docstring of the protocol, whose sentinel is only passed on."""
    theirs = set(dir(ResponseHandler(asyncio.get_running_loop())))
    touched = private_names(_protocol.__file__) & theirs
    assert set(NAME.findall(_protocol.__doc__ or "")) == touched | {"_EXC_SENTINEL"}


async def test_foreign_lists_what_it_touches() -> None:
    """So does the docstring of what adopts connectors, with the methods that a class of others may override."""
    async with aiohttp.TCPConnector() as connector:
        touched = private_names(_foreign.__file__) & {*dir(connector)}
    assert set(NAME.findall(_foreign.__doc__ or "")) == touched | {*_foreign._MAKING}


async def test_a_session_sets_its_trace_configs_once_and_after_its_connector() -> None:
    """That is what `_instrument` listens to; nothing in `ClientSession` is in the place of its descriptor."""
    set_so_far: list[str] = []

    with pytest.warns(DeprecationWarning, match="Inheritance"):

        class Watched(aiohttp.ClientSession):
            def __setattr__(self, name: str, value: object) -> None:
                set_so_far.append(name)
                object.__setattr__(self, name, value)

    async with Watched():
        pass
    built = set_so_far[: set_so_far.index("_middlewares") + 1]
    assert 1 == built.count("_trace_configs")
    assert max(at for at, name in enumerate(built) if name == "_connector") < built.index("_trace_configs")
    assert "_trace_configs" not in vars(aiohttp.ClientSession)
    assert {"_trace_configs", "_connector"} == set(NAME.findall(_instrument.__doc__ or "")) - {"__init__", "_request"}


def test_every_listed_method_is_proved() -> None:
    """Each method that we override or call has its signature in the table above."""
    listed = {*NAME.findall(_connector.__doc__ or ""), *NAME.findall(_protocol.__doc__ or "")}
    methods = {
        name
        for name in listed
        for kind in (aiohttp.TCPConnector, ResponseHandler)
        if callable(getattr(kind, name, None))
    }
    assert methods <= {name for _, name in SIGNATURES}


# --- signatures


@pytest.mark.parametrize(("kind", "name"), SIGNATURES, ids=lambda each: getattr(each, "__name__", each))
def test_signature(kind: type, name: str) -> None:
    """A method takes what it took, and is what it was."""
    function = getattr(kind, name)
    assert SIGNATURES[kind, name] == described(function)
    assert (name in COROUTINES) == inspect.iscoroutinefunction(function)


# --- the pool


async def test_a_fresh_connector() -> None:
    """A connector starts with an empty pool, its loop, and a factory of plain protocols."""
    async with aiohttp.TCPConnector(keepalive_timeout=7, socket_factory=None, ssl=True) as connector:
        assert (False, 7) == (connector._closed, connector._keepalive_timeout)
        assert asyncio.get_running_loop() is connector._loop
        assert not connector._conns
        assert set() == connector._acquired
        factory = connector._factory
        assert isinstance(factory, functools.partial)
        assert (ResponseHandler, {"loop": connector._loop}) == (factory.func, factory.keywords)
        assert connector._socket_factory is None
        assert connector._ssl is True
        assert {} == connector._throttle_dns_futures
    assert connector._closed


async def test_pool_and_acquired() -> None:
    """A connection in use is in ``_acquired``; one given back is last in its key's deque, with a monotonic time."""
    async with HTTPServer() as server, aiohttp.ClientSession() as session:
        connector: Any = session.connector
        async with session.get(server.url("/stream?chunks=1&seconds=0.05")) as response:
            (protocol,) = connector._acquired
            assert response.connection is not None
            assert protocol is response.connection.protocol
            await response.read()
        ((key, idle),) = connector._conns.items()
        assert isinstance(idle, deque)
        assert protocol is idle[-1][0]
        assert 0 <= time.monotonic() - idle[-1][1] < 5
        assert key.is_ssl is False
        assert set() == connector._acquired


async def test_an_idle_connection_is_taken_from_the_pool_itself() -> None:
    """An entry that is removed from ``_conns`` is not used again; a key without entries may be deleted."""
    async with HTTPServer() as server, aiohttp.ClientSession() as session:
        connector: Any = session.connector
        for _ in range(2):
            async with session.get(server.url()) as response:
                await response.read()
            (key,) = connector._conns
            connector._conns.pop(key)[-1][0].close()
        assert server.connections == 2


async def test_release_says_whether_to_close() -> None:
    """``_release`` is called with key and protocol; ``should_close`` keeps a connection out of the pool."""
    seen: list[tuple[Any, ...]] = []

    class Watched(aiohttp.TCPConnector):
        def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
            seen.append((key.port, type(protocol), should_close))
            super()._release(key, protocol, should_close=True)

    async with HTTPServer() as server, aiohttp.ClientSession(connector=Watched()) as session:
        async with session.get(server.url()) as response:
            await response.read()
        assert [(server.port, ResponseHandler, False)] == seen
        assert not session.connector._conns  # type: ignore[union-attr]


async def test_close_cancels_those_that_wait() -> None:
    """``_close`` sets ``_closed`` and cancels the futures of the queue, which nobody's ``task.cancel()`` did."""
    async with HTTPServer() as server:
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1))
        async with session.get(server.url("/stream?chunks=3&seconds=1")):
            waiting = asyncio.create_task(session.get(server.url())._coro)  # type: ignore[arg-type]
            await asyncio.sleep(0.05)
            waiters = session.connector._close()  # type: ignore[union-attr]
            assert session.connector._closed  # type: ignore[union-attr]
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert waiting.cancelling() == 0
            await asyncio.gather(*waiters, return_exceptions=True)
        await session.connector.close()  # type: ignore[union-attr]


# --- the way through a connect


class Watched(aiohttp.TCPConnector):
    """Notes which methods are called, in order, and with what."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[str] = []
        self.options: dict[str, dict[str, Any]] = {}
        self.addr_infos: list[Any] = []

    def note(self, name: str, **options: Any) -> None:
        self.calls.append(name)
        self.options[name] = options

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        self.note("connect", timeout=timeout, timer=req._timer)
        return await super().connect(req, traces, timeout)

    async def _wait_for_available_connection(self, key: Any, traces: Any) -> None:
        self.note("_wait_for_available_connection")
        await super()._wait_for_available_connection(key, traces)

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        self.note("_create_connection")
        return await super()._create_connection(req, traces, timeout)

    async def _resolve_host(self, host: str, port: int, traces: Any = None) -> Any:
        self.note("_resolve_host", host=host, in_flight=(host, port) in self._throttle_dns_futures)
        return await super()._resolve_host(host, port, traces)

    async def _resolve_host_with_throttle(self, key: Any, host: str, port: int, futures: Any, traces: Any) -> Any:
        self.note("_resolve_host_with_throttle", key=key, in_flight=key in self._throttle_dns_futures)
        return await super()._resolve_host_with_throttle(key, host, port, futures, traces)

    async def _create_direct_connection(self, req: Any, traces: Any, timeout: Any, **options: Any) -> Any:
        self.note("_create_direct_connection", url=req.url, port=req.port, is_ssl=req.is_ssl(), **options)
        return await super()._create_direct_connection(req, traces, timeout, **options)

    async def _create_proxy_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        self.note("_create_proxy_connection", proxy=req.proxy)
        return await super()._create_proxy_connection(req, traces, timeout)

    async def _wrap_create_connection(self, *args: Any, addr_infos: Any, req: Any, timeout: Any, **kwargs: Any) -> Any:
        self.note("_wrap_create_connection", host=req.url.raw_host, port=req.port, **kwargs)
        self.addr_infos = list(addr_infos)
        return await super()._wrap_create_connection(*args, addr_infos=addr_infos, req=req, timeout=timeout, **kwargs)

    async def _start_tls_connection(self, underlying_transport: Any, req: Any, timeout: Any, **options: Any) -> Any:
        self.note("_start_tls_connection", protocol=underlying_transport.get_protocol(), proxy=req.proxy, **options)
        return await super()._start_tls_connection(underlying_transport, req=req, timeout=timeout, **options)

    def _get_ssl_context(self, req: Any) -> Any:
        self.note("_get_ssl_context", ssl=req.ssl)
        return super()._get_ssl_context(req)


DIRECT = ["_create_direct_connection", "_get_ssl_context", "_resolve_host"]


async def fetch(connector: aiohttp.TCPConnector, url: str, **options: Any) -> None:
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url, **options) as response:
        await response.read()


async def test_a_direct_connect() -> None:
    """``connect`` creates, creates directly, asks for a context, resolves and races; the addresses are a list."""
    async with HTTPServer() as server:
        connector = Watched(resolver=FixedResolver())
        await fetch(connector, server.url(host="x.test"))
    lookup = ["_resolve_host_with_throttle"]
    assert ["connect", "_create_connection", *DIRECT, *lookup, "_wrap_create_connection"] == connector.calls
    assert {"key": ("x.test", server.port), "in_flight": True} == connector.options["_resolve_host_with_throttle"]
    assert [("127.0.0.1", server.port)] == [each[4] for each in connector.addr_infos]
    assert ("x.test", server.port) == tuple(
        connector.options["_wrap_create_connection"][key] for key in ("host", "port")
    )


async def test_lookups() -> None:
    """A name in flight is a key of ``_throttle_dns_futures``; an answered one is in ``_cached_hosts``, and expires."""
    connector = Watched(resolver=FixedResolver(delay=0.05), ttl_dns_cache=300)
    one, other = (asyncio.create_task(connector._resolve_host("x.test", 80)) for _ in range(2))
    assert await one == await other
    assert ["_resolve_host", "_resolve_host", "_resolve_host_with_throttle"] == sorted(connector.calls)
    assert connector.use_dns_cache
    key = ("x.test", 80)
    assert key in connector._cached_hosts
    assert not connector._cached_hosts.expired(key)
    connector.clear_dns_cache(*key)
    assert key not in connector._cached_hosts
    await connector.close()


async def test_a_lookup_outlives_who_began_it() -> None:
    """The throttled lookup is a shielded task in a copy of its owner's context, and ends by itself."""
    ended = asyncio.Event()

    class Late(Watched):
        async def _resolve_host_with_throttle(self, *args: Any, **options: Any) -> Any:
            try:
                return await super()._resolve_host_with_throttle(*args, **options)
            finally:
                ended.set()

    connector = Late(resolver=FixedResolver(delay=0.05))
    owner = asyncio.create_task(connector._resolve_host("x.test", 80))
    await asyncio.sleep(0.02)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert not ended.is_set()
    await asyncio.wait_for(ended.wait(), 1)
    await connector.close()


async def test_a_wait_in_the_queue() -> None:
    """A full pool is waited for before anything is created."""
    async with HTTPServer() as server:
        connector = Watched(limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            async with session.get(server.url("/stream?chunks=1&seconds=0.05")) as busy:
                waiting = asyncio.create_task(session.get(server.url())._coro)  # type: ignore[arg-type]
                await asyncio.sleep(0.02)
                assert ["connect", "_wait_for_available_connection"] == connector.calls[-2:]
                await busy.read()
            (await waiting).release()


async def test_a_connect_through_a_proxy(ca: ThrowawayCA) -> None:
    """A proxy is connected to directly, with an error class of its own; then TLS starts on that transport."""
    server = TLSServer(ca.issue("127.0.0.1"))
    async with server, scripted_proxy(target=(server.host, server.port)) as proxy:
        connector = Watched()
        await fetch(connector, server.url(), proxy=proxy, ssl=ca.client_context())
    names = ["connect", "_create_connection", "_create_proxy_connection", *DIRECT, "_wrap_create_connection"]
    assert [*names, "_start_tls_connection", "_get_ssl_context"] == connector.calls
    direct = connector.options["_create_direct_connection"]
    assert ClientProxyConnectionError is direct["client_error"]
    assert URL(proxy) == direct["url"] == connector.options["_create_proxy_connection"]["proxy"]
    assert (direct["url"].port, False) == (direct["port"], direct["is_ssl"])
    started = connector.options["_start_tls_connection"]
    assert isinstance(started["protocol"], ResponseHandler)
    assert URL(proxy) == started["proxy"]


async def test_a_refusal_by_a_proxy() -> None:
    """Another answer than 200 to CONNECT is ``ClientHttpProxyError`` out of ``_create_proxy_connection``."""
    async with scripted_proxy(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n") as proxy:
        connector = Watched()
        with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
            await fetch(connector, "https://x.test/", proxy=proxy)
    assert caught.value.status == 502
    assert connector.calls[-1] == "_wrap_create_connection"


async def test_addresses_are_raced_until_the_list_is_empty() -> None:
    """What is left of the very list that is passed is raced again: clearing it stops that."""

    class Once(Watched):
        async def _wrap_create_connection(self, *args: Any, addr_infos: Any, **options: Any) -> Any:
            try:
                return await super()._wrap_create_connection(*args, addr_infos=addr_infos, **options)
            finally:
                if self.clearing:
                    addr_infos.clear()

        clearing = True

    with refusing_address() as (_, port):
        for clearing, races in ((True, 1), (False, 2)):
            connector = Once(resolver=FixedResolver(("127.0.0.1", "127.0.0.2")))
            connector.clearing = clearing
            with pytest.raises(aiohttp.ClientConnectorError):
                await fetch(connector, f"http://x.test:{port}/")
            assert races == connector.calls.count("_wrap_create_connection")


async def test_sockets_come_from_the_factory() -> None:
    """``_socket_factory`` may be set after the connector is made, and is asked once per address."""
    asked: list[Any] = []

    def factory(addr_info: Any) -> Any:
        asked.append(addr_info[4])
        return socket.socket(*addr_info[:3])

    async with HTTPServer() as server:
        connector = aiohttp.TCPConnector()
        connector._socket_factory = factory
        await fetch(connector, server.url())
    assert [("127.0.0.1", server.port)] == asked


async def test_a_timeout_without_errno_stays_itself() -> None:
    """A ``TimeoutError`` without ``errno`` is not wrapped, and is the cause of what the caller gets."""

    class OwnTimeoutError(TimeoutError):
        pass

    class Late(aiohttp.TCPConnector):
        async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
            raise OwnTimeoutError

    with pytest.raises(aiohttp.ConnectionTimeoutError) as caught:
        await fetch(Late(), "http://127.0.0.1:1/")
    assert type(caught.value.__cause__) is OwnTimeoutError

    class Slow(FixedResolver):
        async def resolve(self, *_: Any, **__: Any) -> Any:
            raise OwnTimeoutError

    with pytest.raises(aiohttp.ConnectionTimeoutError) as caught:
        await fetch(aiohttp.TCPConnector(resolver=Slow()), "http://x.test:1/")
    assert type(caught.value.__cause__) is OwnTimeoutError


# --- contexts


async def test_contexts(ca: ThrowawayCA) -> None:
    """A request's ``ssl`` comes before the connector's ``_ssl``; True means the default; a pin is found in both."""
    context, pin = ca.client_context(), aiohttp.Fingerprint(b"x" * 32)
    loop = asyncio.get_running_loop()
    request = functools.partial(ClientRequest, "GET", URL("https://x.test/"), loop=loop)
    async with aiohttp.TCPConnector(ssl=context) as connector, aiohttp.TCPConnector(ssl=pin) as pinned:
        assert connector._ssl is context
        assert context is connector._get_ssl_context(request(ssl=True))
        assert connector._get_ssl_context(request(ssl=False)).verify_mode is ssl.CERT_NONE  # type: ignore[union-attr]
        assert connector._get_ssl_context(ClientRequest("GET", URL("http://x.test/"), loop=loop)) is None
        assert connector._get_fingerprint(request(ssl=True)) is None
        assert pin is connector._get_fingerprint(request(ssl=pin))
        assert pin is pinned._get_fingerprint(request(ssl=True))
        assert pin.fingerprint == b"x" * 32


# --- requests


async def test_the_timer_of_a_request() -> None:
    """``ClientRequest._timer`` tells whether ``total`` has run out, and raises ``TimeoutError`` if so."""
    with dead_address() as (host, port):
        connector = Watched()
        with pytest.raises(TimeoutError):
            await fetch(connector, f"http://{host}:{port}/", timeout=aiohttp.ClientTimeout(total=0.05))
        timer = connector.options["connect"]["timer"]
        with pytest.raises(TimeoutError):
            timer.assert_timeout()
    fresh = ClientRequest("GET", URL("http://x.test/"), loop=asyncio.get_running_loop())._timer
    assert (fresh or helpers.TimerNoop()).assert_timeout() is None  # type: ignore[func-returns-value]


async def test_the_timeout_of_a_request() -> None:
    """``connect`` is given the request's own timeout object; a session without one has ``DEFAULT_TIMEOUT``."""
    own = aiohttp.ClientTimeout(total=3)
    async with HTTPServer() as server:
        for timeout, expected in ({"timeout": own}, own), ({}, DEFAULT_TIMEOUT):
            connector = Watched()
            await fetch(connector, server.url(), **timeout)
            assert expected is connector.options["connect"]["timeout"]


async def test_traces() -> None:
    """A ``Trace`` holds its config, and what ``trace_config_ctx`` made of the request's ``trace_request_ctx``."""
    seen: list[Trace] = []

    class Config(aiohttp.TraceConfig):
        def trace_config_ctx(self, trace_request_ctx: Any = None) -> Any:
            return ["of", trace_request_ctx]

    class Watching(aiohttp.TCPConnector):
        async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
            seen.extend(traces)
            return await super().connect(req, traces, timeout)

    config = Config()
    session = aiohttp.ClientSession(connector=Watching(), trace_configs=[config])
    async with HTTPServer() as server, session, session.get(server.url(), trace_request_ctx="mine") as response:
        await response.read()
    assert [(config, ["of", "mine"])] == [(trace._trace_config, trace._trace_config_ctx) for trace in seen]


# --- the protocol


class Handler(ResponseHandler):
    """Notes what it is told."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.heads: list[tuple[Any, Any]] = []
        self.failures: list[tuple[BaseException, Any, Any]] = []
        self.params: list[dict[str, Any]] = []

    def feed_data(self, data: Any, size: int = 0) -> None:
        self.heads.append(data)
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        self.failures.append((exc, self._payload, self.read_timeout))
        super().set_exception(exc, *cause)

    def set_response_params(self, **params: Any) -> None:
        self.params.append(params)
        super().set_response_params(**params)


async def test_the_protocol_is_told_of_heads() -> None:
    """A parsed head comes to ``feed_data`` with its body, or with ``EMPTY_PAYLOAD`` where none can be."""
    made: list[Handler] = []

    def factory() -> Handler:
        made.append(Handler(asyncio.get_running_loop()))
        return made[-1]

    async with HTTPServer() as server, aiohttp.ClientSession() as session:
        session.connector._factory = factory  # type: ignore[union-attr, assignment]
        for method in ("GET", "HEAD"):
            async with session.request(method, server.url()) as response:
                await response.read()
        (handler,) = made
        (head, body), (_, nothing) = handler.heads
        assert (200, "1.1") == (head.code, f"{head.version.major}.{head.version.minor}")
        assert head.headers["Content-Length"] == "6"
        assert isinstance(body, StreamReader)
        assert nothing is EMPTY_PAYLOAD
        # One call per response, keywords only, before anything is sent: where a read budget goes in.
        assert [None, None] == [params["read_timeout"] for params in handler.params]


async def test_the_protocol_is_told_of_read_timeouts() -> None:
    """``SocketTimeoutError`` comes without a cause; ``_payload`` is None until the head is read."""
    made: list[Handler] = []

    def factory() -> Handler:
        made.append(Handler(asyncio.get_running_loop()))
        return made[-1]

    timeout = aiohttp.ClientTimeout(sock_read=0.05)
    async with HTTPServer() as server, aiohttp.ClientSession(timeout=timeout) as session:
        session.connector._factory = factory  # type: ignore[union-attr, assignment]
        for path in ("/slow?seconds=2", "/stream?chunks=2&seconds=2"):
            with pytest.raises(aiohttp.SocketTimeoutError):
                async with session.get(server.url(path)) as response:
                    await response.read()
        (before, no_payload, budget), (inside, payload, _) = (handler.failures[0] for handler in made)
    assert [aiohttp.SocketTimeoutError] * 2 == [type(before), type(inside)]
    assert budget == 0.05
    assert no_payload is None
    assert isinstance(payload, StreamReader)
    assert payload.exception() is inside


def test_the_cause_of_an_exception_may_be_left_out() -> None:
    """``set_exception`` takes a sentinel where there is no cause, so that passing on nothing changes nothing."""
    default = inspect.signature(ResponseHandler.set_exception).parameters["exc_cause"].default
    assert helpers._EXC_SENTINEL is default
    assert client_proto._EXC_SENTINEL is default  # type: ignore[attr-defined]


async def test_bytes_behind_a_head() -> None:
    """What follows a 200 to CONNECT is in the body's ``total_bytes`` or in ``_tail``; without any, both are empty."""
    found: list[tuple[bytes, int]] = []

    class Looking(aiohttp.TCPConnector):
        async def _start_tls_connection(self, underlying_transport: Any, *_: Any, **__: Any) -> Any:
            protocol = underlying_transport.get_protocol()
            payload = protocol._payload
            found.append((bytes(protocol._tail), 0 if payload is None else payload.total_bytes))
            underlying_transport.abort()
            raise aiohttp.ClientConnectionError

    for glued in (b"", b"220 evil.test ready\r\n"):
        async with scripted_proxy(injected=glued) as proxy:
            with pytest.raises(aiohttp.ClientConnectionError):
                await fetch(Looking(), "https://x.test/", proxy=proxy)
    assert [(b"", 0)] == found[:1]
    tail, count = found[1]
    assert tail or count


async def test_the_protocol_is_told_when_a_request_is_sent() -> None:
    """``start_timeout`` comes once the body is written, and ``_continue`` is there where 100 Continue is waited for."""
    order: list[str] = []
    waits: list[bool] = []

    class Telling(Handler):
        def start_timeout(self) -> None:
            order.append("start_timeout")
            super().start_timeout()

    class Looking(aiohttp.TCPConnector):
        async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
            waits.append(req._continue is not None)
            return await super().connect(req, traces, timeout)

    async def body() -> AsyncGenerator[bytes]:
        yield b"x"
        order.append("sent")

    async with HTTPServer() as server, aiohttp.ClientSession(connector=Looking()) as session:
        session.connector._factory = lambda: Telling(asyncio.get_running_loop())  # type: ignore[union-attr, assignment]
        for expect in (False, True):
            async with session.post(server.url("/echo"), data=body(), expect100=expect) as response:
                await response.read()
    assert [False, True] == waits
    assert ["sent", "start_timeout"] * 2 == order


async def test_the_protocol_becomes_a_websockets() -> None:
    """``set_parser`` comes after the 101, and the parser fills the queue's ``_buffer``, a Close frame last."""
    seen: list[tuple[Any, Any, Any]] = []

    class Upgraded(Handler):
        def set_parser(self, parser: Any, payload: Any, data_received_cb: Any = None) -> None:
            seen.append((parser, payload, data_received_cb))
            super().set_parser(parser, payload, data_received_cb)

    async with HTTPServer() as server, aiohttp.ClientSession() as session:
        session.connector._factory = lambda: Upgraded(asyncio.get_running_loop())  # type: ignore[union-attr, assignment]
        for heartbeat in (None, 30.0):
            async with session.ws_connect(server.url("/ws"), heartbeat=heartbeat, autoclose=False) as websocket:
                parser, queue, heard = seen[-1]
                assert (heartbeat is None) is (heard is None)
                assert heard is None or heard.__self__ is websocket
                assert (False, b"") == parser.feed_data(b"\x88\x02\x03\xe8")  # unmasked: a server's
                (message, _) = queue._buffer[-1]
                assert (aiohttp.WSMsgType.CLOSE, 1000) == (message.type, message.data)
                assert queue.exception() is None


async def test_the_end_of_a_connection() -> None:
    """Callbacks of a ``Connection`` run once, when it is released; ``connection_lost`` comes after a close."""
    lost: list[BaseException | None] = []
    released: list[str] = []

    class Lost(ResponseHandler):
        def connection_lost(self, exc: BaseException | None) -> None:
            lost.append(exc)
            super().connection_lost(exc)

    class Calling(aiohttp.TCPConnector):
        async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
            connection = await super().connect(req, traces, timeout)
            connection.add_callback(lambda: released.append("released"))
            return connection

    connector = Calling()
    connector._factory = functools.partial(Lost, loop=asyncio.get_running_loop())  # type: ignore[assignment]
    async with HTTPServer() as server, aiohttp.ClientSession(connector=connector) as session:
        async with session.get(server.url()) as response:
            await response.read()
            assert ["released"] == released
        assert [] == lost
    assert ["released"] == released
    assert [None] == lost

"""The one file that overrides aiohttp's internals; what it does with them is in ``timing``, ``dns`` and ``tls``.

Private names of aiohttp that it touches, each proved by ``tests/test_contract.py`` on the
lowest and the newest supported aiohttp:

* ``BaseConnector``: ``connect``'s signature, ``_wait_for_available_connection``,
  ``_create_connection``, ``_release``, ``_close``, ``_closed``, ``_conns``, ``_acquired``,
  ``_factory``, ``_keepalive_timeout``, ``_loop``
* ``TCPConnector``: ``_resolve_host``, ``_resolve_host_with_throttle``, ``_cached_hosts``,
  ``_throttle_dns_futures``, ``_create_direct_connection``, ``_create_proxy_connection``,
  ``_wrap_create_connection``, ``_start_tls_connection``, ``_get_ssl_context``,
  ``_get_fingerprint``, ``_socket_factory``, ``_ssl``
* ``ClientRequest._timer``, ``_continue``
* ``tracing.Trace``: ``_trace_config``, ``_trace_config_ctx``
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import socket
import ssl
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiohttp
from aiohttp.client_exceptions import ClientConnectorError, ClientProxyConnectionError
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import is_ip_address

from aiohttp_hardened._protocol import TimedResponseHandler, time_protocol, timed_protocol
from aiohttp_hardened.exceptions import PhaseTimeoutError, PlaintextBoundaryError, SettingsError, UnverifiedRequestError
from aiohttp_hardened.timing._budgets import UNLIMITED, budgets_for
from aiohttp_hardened.timing._connection import Connection, register_pool
from aiohttp_hardened.timing._current import current_attempt
from aiohttp_hardened.timing._dns import Lookup, current_lookup
from aiohttp_hardened.timing._hooks import SILENT
from aiohttp_hardened.timing._phase import Phase
from aiohttp_hardened.timing._queue import timed_queue
from aiohttp_hardened.timing._request import RequestTiming
from aiohttp_hardened.timing._tcp import Race
from aiohttp_hardened.timing._tls import split_handshakes
from aiohttp_hardened.timing._tunnel import start_tunnel, tunnel_answered
from aiohttp_hardened.tls._context import SharedSSLContext
from aiohttp_hardened.tls._registry import context_ready, peek

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence

    from aiohttp.abc import ResolveResult
    from aiohttp.client_reqrep import ClientRequest, ConnectionKey
    from aiohttp.tracing import Trace

    from aiohttp_hardened._settings import TimeoutSettings, TLSSettings
    from aiohttp_hardened.dns._health import AddressHealth
    from aiohttp_hardened.dns._resolver import HardenedResolver
    from aiohttp_hardened.timing._budgets import Budgets
    from aiohttp_hardened.timing._connection import ConnectionState
    from aiohttp_hardened.timing._request import Attempt
    from aiohttp_hardened.timing._tcp import AddrInfo

    SocketFactory = Callable[[AddrInfo], socket.socket]

_Made = TypeVar("_Made")

_NO_TIMEOUT: Final = aiohttp.ClientTimeout()
_AGE_SPREAD: Final = 0.1
"""Connections made in one burst must not all be closed in another."""


@dataclass(slots=True, kw_only=True)
class Hardening:
    """What a connector has beyond aiohttp's.

    Args:
        timeouts: Budgets; ``None``: aiohttp's own timeouts hold (somebody else's connector).
        tls: The trust decision; ``None``: the connector's own contexts are used.
        resolver: Our resolver, which the connector closes.
        lookups_bounded: The resolver holds the lookup's budget by itself.
        health: Addresses that failed lately.
        max_connection_age: Seconds; ``None``: no limit.
        socket_factory: A caller's own.
    """

    timeouts: TimeoutSettings | None = None
    tls: TLSSettings | None = None
    resolver: HardenedResolver | None = None
    health: AddressHealth | None = None
    lookups_bounded: bool = False
    max_connection_age: float | None = None
    socket_factory: SocketFactory | None = None
    context: SharedSSLContext | None = field(default=None, init=False)
    last_timeout: aiohttp.ClientTimeout | None = field(default=None, init=False)
    """Nearly every request of a connector has the same one, so its budgets are kept."""
    last_budgets: tuple[Budgets, aiohttp.ClientTimeout] = field(default=(UNLIMITED, _NO_TIMEOUT), init=False)
    connecting: int = field(default=0, init=False)
    """How many requests are getting a connection."""
    restore: Callable[[], None] | None = field(default=None, init=False)
    """Makes the connector what it was, when nothing of ours runs in it; ``None``: it is ours for good."""
    leaving: bool = field(default=False, init=False)
    """It is to be restored when nobody is connecting."""

    @property
    def tells_only(self) -> bool:
        """Whether it is somebody else's connector, which does what aiohttp's does, to the last exception."""
        return self.timeouts is None

    def leave_when_idle(self) -> None:
        """Restore the connector if that is wanted and possible."""
        if self.leaving and not self.connecting and self.restore is not None:
            self.restore()


class TimedConnector(aiohttp.BaseConnector):
    """A connector that tells of its phases and holds their budgets."""

    _hardening: Hardening
    _seen_generation = 0

    def _harden(self, hardening: Hardening) -> None:
        """Take over from aiohttp's own protocol, and be counted."""
        self._hardening = hardening
        factory: Any = self._factory
        if getattr(factory, "func", None) is ResponseHandler:
            timed: Any = functools.partial(timed_protocol(ResponseHandler), loop=self._loop)
            self._factory = timed
        register_pool(self)

    def connect(  # pyright: ignore[reportIncompatibleMethodOverride]  (a def that returns what an async def would)
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Coroutine[Any, Any, aiohttp.connector.Connection]:
        """Get from the pool or create a connection; no frame of ours where nobody listens and nothing is made."""
        context = self._hardening.context
        if context is not None and context.generation != self._seen_generation:
            self._close_outdated(context.generation)
        timing = _timing_of(traces) if traces else None
        if timing is None:
            if timeout.sock_read is not None and self._has_idle(req.connection_key):
                return super().connect(req, traces, timeout)
            timing = RequestTiming(SILENT)
        return self._timed_connect(timing, req, traces, timeout)

    async def _timed_connect(
        self, timing: RequestTiming, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        attempt = timing.begin(url=req.url, method=req.method, headers=req.headers, timer=req._timer)
        hardening = self._hardening
        if hardening.last_timeout is not timeout:
            hardening.last_timeout = timeout
            hardening.last_budgets = budgets_for(hardening.timeouts, timeout)
        attempt.budgets, inner = hardening.last_budgets
        if req.proxy is not None:
            attempt.proxied = True
        outer = current_attempt.get()
        current_attempt.set(attempt)
        hardening.connecting += 1
        try:
            try:
                connection = await super().connect(req, traces, inner)
            except BaseException as exc:
                attempt.connect_failed(exc)
                raise
            finally:
                current_attempt.set(outer)
            self._connected(attempt, connection)
            if req.body or req._continue is not None:
                self._watch_body(attempt, connection, req, timeout)
            elif timeout.sock_read is None:
                self._hold_read_budget(connection)
            return connection
        finally:
            hardening.connecting -= 1
            if hardening.leaving:
                hardening.leave_when_idle()

    def _watch_body(
        self,
        attempt: Attempt,
        connection: aiohttp.connector.Connection,
        req: ClientRequest,
        timeout: aiohttp.ClientTimeout,
    ) -> None:
        """Watch the body that is to be sent; waiting for leave to send it is waiting for the server."""
        asks = req._continue is not None
        if attempt.hooks and req.body and isinstance(connection.protocol, TimedResponseHandler):
            attempt.sends(when_told=asks)
        if timeout.sock_read is None or asks:
            self._hold_read_budget(connection, own=timeout.sock_read is not None, at_once=asks)

    def _hold_read_budget(
        self, connection: aiohttp.connector.Connection, *, own: bool = False, at_once: bool = False
    ) -> None:
        timeouts = self._hardening.timeouts
        protocol = connection.protocol
        if timeouts is not None and isinstance(protocol, TimedResponseHandler):
            seconds = None if own else timeouts.read
            if own or seconds is not None:
                protocol.hold_read_budget(seconds, at_once=at_once)

    def _connected(self, attempt: Attempt, connection: aiohttp.connector.Connection) -> None:
        protocol = connection.protocol
        if not isinstance(protocol, TimedResponseHandler):
            # It was in the pool before the connector was ours to time, or the connector makes its own.
            time_protocol(protocol)
        if not isinstance(protocol, TimedResponseHandler):
            attempt.connected(None, reused=not attempt.setup_started)
        else:
            reused = protocol.connection is not None
            if protocol.connection is None:
                protocol.connection = self._describe(attempt, protocol)
            protocol.tells_only = self._hardening.tells_only
            # Though no hook may listen to this attempt any more, a failure after its head is not one before it.
            if attempt.request.hooks:
                protocol.attempt = attempt
            attempt.connected(protocol.connection, reused=reused)
        if attempt.hooks:
            connection.add_callback(attempt.released)

    def _describe(self, attempt: Attempt, protocol: TimedResponseHandler) -> Connection:
        age = self._hardening.max_connection_age
        if age is not None:
            protocol.expires = self._loop.time() + age * random.uniform(1 - _AGE_SPREAD, 1 + _AGE_SPREAD)  # noqa: S311
        peer = attempt.peer or (None, None)
        return Connection(
            attempt.hooks,
            server_address=attempt.server_address,
            server_port=attempt.server_port,
            scheme=attempt.url.scheme,
            peer_address=peer[0],
            peer_port=peer[1],
        )

    async def _wait_for_available_connection(self, key: ConnectionKey, traces: list[Trace]) -> None:
        attempt = current_attempt.get()
        if attempt is None:
            await super()._wait_for_available_connection(key, traces)
            return
        budgets = attempt.budgets
        limit: asyncio.Timeout | None = None
        try:
            with timed_queue(attempt):
                try:
                    async with asyncio.timeout(budgets.queue) as limit:
                        await super()._wait_for_available_connection(key, traces)
                except asyncio.CancelledError as exc:
                    raise self._unless_closed(exc) from None
        except TimeoutError:
            if limit is None or not limit.expired() or budgets.queue is None:
                raise
            name = "connect" if budgets.queue_and_connect else "queue"
            raise attempt.timeout_error(
                Phase.QUEUE, budgets.queue, name, f"the pool was full ({self._full()})"
            ) from None

    def _full(self) -> str:
        parts = [f"limit {self.limit}"] if self.limit else []
        if self.limit_per_host:
            parts.append(f"limit_per_host {self.limit_per_host}")
        return ", ".join(parts)

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        attempt = current_attempt.get()
        if attempt is None:
            await self._prepare_tls(req, None)
            return await super()._create_connection(req, traces, timeout)
        attempt.start_setup()
        budgets = attempt.budgets
        limit: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout_at(self._connect_deadline(attempt)) as limit:
                await self._prepare_tls(req, attempt)
                return await super()._create_connection(req, traces, timeout)
        except PhaseTimeoutError:
            raise
        except TimeoutError:
            if limit is None or not limit.expired() or budgets.connect is None:
                raise
            raise attempt.timeout_error(attempt.current_phase, budgets.connect, "connect") from None
        except asyncio.CancelledError as exc:
            raise self._unless_closed(exc) from None

    def _connect_deadline(self, attempt: Attempt) -> float | None:
        budget = attempt.budgets.connect
        if budget is None:
            return None
        now = self._loop.time()
        if attempt.budgets.queue_and_connect:
            return now + budget - (attempt.now() - attempt.start) / 1e9
        return now + budget

    def _unless_closed(self, exc: asyncio.CancelledError) -> BaseException:
        """Return the cancellation, or a connection error where nobody sent one.

        ``BaseConnector._close`` cancels the futures of those that wait.
        """
        task = asyncio.current_task()
        if self._hardening.tells_only or not self._closed or (task is not None and task.cancelling()):
            return exc
        return aiohttp.ClientConnectionError("Connector is closed.")

    async def _prepare_tls(self, req: ClientRequest, attempt: Attempt | None) -> None:
        """Have the shared context built, in a thread, before aiohttp asks for it."""

    def _has_idle(self, key: ConnectionKey) -> bool:
        idle = self._conns.get(key)
        if not idle:
            return False
        protocol, since = idle[-1]
        keepalive = self._keepalive_timeout
        # A second's margin: between this look and aiohttp's own nothing may expire.
        return protocol.is_connected() and (keepalive is None or monotonic() - since <= keepalive - 1)

    def _release(self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        if isinstance(protocol, TimedResponseHandler):
            protocol.attempt = None
            if protocol.expires is not None and not should_close:
                should_close = self._loop.time() >= protocol.expires
            context = self._hardening.context
            if context is not None and key.is_ssl and protocol.generation not in (None, context.generation):
                should_close = True
        super()._release(key, protocol, should_close=should_close)

    def _close_outdated(self, generation: int) -> None:
        """Close idle connections that were made with an earlier context."""
        self._seen_generation = generation
        for key, idle in list(self._conns.items()):
            if not key.is_ssl:
                continue
            for entry in list(idle):
                protocol = entry[0]
                if isinstance(protocol, TimedResponseHandler) and protocol.generation not in (None, generation):
                    idle.remove(entry)
                    protocol.close()
            if not idle:
                del self._conns[key]

    def _swapped(self) -> None:
        """Close what is outdated soon, not with the next request only; in the thread that swapped the context."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it every connection
            self._loop.call_soon_threadsafe(self._close_swapped)

    def _close_swapped(self) -> None:
        context = self._hardening.context
        if context is not None and not self._closed:
            self._close_outdated(context.generation)

    @property
    def event_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it belongs to."""
        return self._loop

    def connection_states(self) -> Iterator[tuple[Connection, ConnectionState]]:
        """Yield each live connection with its state; safe from another thread."""
        for protocol in tuple(self._acquired):
            connection = getattr(protocol, "connection", None)
            if connection is not None:
                yield connection, "active"
        for idle in tuple(self._conns.values()):
            for protocol, _ in tuple(idle):
                connection = getattr(protocol, "connection", None)
                if connection is not None:
                    yield connection, "idle"


class TimedTCPConnector(TimedConnector, aiohttp.TCPConnector):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The same for TCP: resolver, race, tunnel and handshake."""

    def _harden(self, hardening: Hardening) -> None:
        super()._harden(hardening)
        hardening.socket_factory = self._socket_factory
        self._socket_factory = _make_socket

    async def _prepare_tls(self, req: ClientRequest, attempt: Attempt | None) -> None:
        hardening = self._hardening
        if hardening.tls is None or hardening.context is not None:
            return
        if not req.is_ssl() and (req.proxy is None or req.proxy.scheme != "https"):
            return
        context = peek(hardening.tls)
        if context is None:
            context = await context_ready(hardening.tls)
            if attempt is not None:
                attempt.trust_store_loaded()
        if hardening.context is None:
            hardening.context = context
            self._seen_generation = context.generation
            context.on_swap(self._swapped)

    async def _resolve_host(self, host: str, port: int, traces: Sequence[Trace] | None = None) -> list[ResolveResult]:
        attempt = current_attempt.get()
        if attempt is None or is_ip_address(host):
            return await super()._resolve_host(host, port, traces)
        key = (host, port)
        if self.use_dns_cache and key in self._cached_hosts and not self._cached_hosts.expired(key):
            attempt.hooks.dns_cache_hit(attempt)
            return await super()._resolve_host(host, port, traces)
        lookup = Lookup(attempt, host, port, coalesced=self.use_dns_cache and key in self._throttle_dns_futures)
        outer = current_lookup.get()
        current_lookup.set(lookup)
        try:
            try:
                hosts = await self._resolve_in_time(attempt, host, port, traces)
            except KeyError:
                # The entry was evicted between the answer and a waiter's turn to read it: look again.
                hosts = await self._resolve_in_time(attempt, host, port, traces)
        except BaseException as exc:
            reason = self._unless_closed(exc) if isinstance(exc, asyncio.CancelledError) else _own(exc, attempt)
            lookup.failed(reason)
            if reason is exc:
                raise
            raise reason from exc.__cause__
        finally:
            current_lookup.set(outer)
        lookup.answered([each["host"] for each in hosts])
        if lookup.source == "stale":
            # aiohttp would keep it for ``cache_ttl``. Not at once: waiters on this lookup still read it there.
            self._loop.call_soon(self.clear_dns_cache, host, port)
        return hosts

    async def _resolve_in_time(
        self, attempt: Attempt, host: str, port: int, traces: Sequence[Trace] | None
    ) -> list[ResolveResult]:
        """Bound the lookup of a resolver that has no deadline of its own."""
        budget = attempt.budgets.dns
        if self._hardening.lookups_bounded or budget is None:
            return await super()._resolve_host(host, port, traces)
        limit: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(budget) as limit:
                return await super()._resolve_host(host, port, traces)
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            raise attempt.timeout_error(Phase.DNS, budget, "dns") from None

    async def _resolve_host_with_throttle(
        self, key: tuple[str, int], host: str, port: int, futures: Any, traces: Sequence[Trace] | None
    ) -> list[ResolveResult]:
        lookup = current_lookup.get()
        try:
            hosts = await super()._resolve_host_with_throttle(key, host, port, futures, traces)
        except BaseException as exc:
            if lookup is not None:
                lookup.task_ended(exc)
            raise
        if lookup is not None:
            lookup.task_ended(None, [each["host"] for each in hosts])
        return hosts

    async def _create_direct_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout, **options: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        to_proxy = options.get("client_error") is ClientProxyConnectionError
        if to_proxy and req.is_ssl():
            self._refuse_certificate_to_proxy(req)
        attempt = current_attempt.get()
        if attempt is None:
            return await super()._create_direct_connection(req, traces, timeout, **options)
        attempt.aim(
            port=req.port if req.is_ssl() else None,
            proxy="itself" if to_proxy else None,
            pin=_pin(self._get_fingerprint(req)),
        )
        connected = await super()._create_direct_connection(req, traces, timeout, **options)
        if to_proxy and attempt.url.scheme in ("https", "wss"):
            attempt.tunnel = start_tunnel(attempt, req.url)
        return connected

    def _refuse_certificate_to_proxy(self, req: ClientRequest) -> None:
        """Refuse to show the target's client certificate to a proxy that may ask for one."""
        tls = self._hardening.tls
        chosen = self._ssl if req.ssl is True else req.ssl
        if tls is not None and tls.client_cert is not None and not isinstance(chosen, ssl.SSLContext):
            raise SettingsError(
                f"tls.client_cert={tls.client_cert!r} would be shown to the https proxy {req.url.origin()} too; "
                "reach the target through an http:// proxy or without one, or use a session without client_cert"
            )

    async def _create_proxy_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> tuple[asyncio.BaseTransport, ResponseHandler]:
        try:
            return await super()._create_proxy_connection(req, traces, timeout)
        except aiohttp.ClientHttpProxyError as exc:
            attempt = current_attempt.get()
            if attempt is not None and attempt.tunnel is not None:
                tunnel_answered(attempt.tunnel, exc.status, exc)
            raise

    async def _wrap_create_connection(
        self,
        *args: Any,
        addr_infos: list[AddrInfo],
        req: ClientRequest,
        timeout: aiohttp.ClientTimeout,
        **kwargs: Any,
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        attempt = current_attempt.get()
        if attempt is None:
            return await super()._wrap_create_connection(  # pyright: ignore[reportUnknownMemberType]
                *args, addr_infos=addr_infos, req=req, timeout=timeout, **kwargs
            )
        health = self._hardening.health
        left = list(addr_infos) if health is None else health.order(addr_infos)
        connect = functools.partial(
            super()._wrap_create_connection,  # pyright: ignore[reportUnknownMemberType]  (aiohappyeyeballs' addresses)
            *args,
            req=req,
            timeout=timeout,
            **kwargs,
        )
        while True:
            addresses = tuple(str(each[4][0]) for each in left)
            race = Race(attempt, req.url.raw_host or "", req.port, addresses, self._hardening.socket_factory)
            try:
                connected = await self._within_budget(attempt, Phase.TCP, functools.partial(connect, addr_infos=left))
            except BaseException as exc:
                race.finish(exc)
                if self._hardening.tells_only:
                    raise
                if not self._another_address(attempt, race, left, exc):
                    # aiohttp would race what is left of this list once more.
                    addr_infos.clear()
                    raise
            else:
                race.finish()
                if health is not None:
                    health.succeeded(race.winner)
                protocol = connected[1]
                if isinstance(protocol, TimedResponseHandler) and self._hardening.context is not None:
                    protocol.generation = attempt.tls_generation
                return connected
            finally:
                if health is not None:
                    health.failed(race.failed_addresses)

    def _another_address(self, attempt: Attempt, race: Race, left: list[AddrInfo], exc: BaseException) -> bool:
        """Take the address whose handshake failed off the list; say whether another one is left."""
        if not isinstance(exc, (ClientConnectorError, TimeoutError)):
            return False
        if race.winner is None:
            if not is_ip_address(race.host):
                self._forget_addresses(race.host, race.port)
            return False
        left[:] = [each for each in left if each[4][0] != race.winner[0]]
        return bool(left) and (attempt.sock_connect_until is None or self._loop.time() < attempt.sock_connect_until)

    def _forget_addresses(self, host: str, port: int | None) -> None:
        """Have a name looked up again whose every address failed to connect, once a second at most."""
        resolver = self._hardening.resolver
        if port is not None and (resolver is None or resolver.evict(host)):
            self.clear_dns_cache(host, port)

    async def _within_budget(self, attempt: Attempt, phase: Phase, connect: Callable[[], Awaitable[_Made]]) -> _Made:
        """Run a race with its handshake, or a handshake alone, within the budget of each."""
        budgets = attempt.budgets
        if not budgets.ours:
            return await connect()
        now = self._loop.time()
        if budgets.sock_connect is not None:
            if attempt.sock_connect_until is None:
                attempt.sock_connect_until = now + budgets.sock_connect
            when: float | None = attempt.sock_connect_until
        else:
            seconds = budgets.tcp if phase is Phase.TCP else budgets.tls
            when = None if seconds is None else now + seconds
            attempt.budget = None if seconds is None else (phase, seconds, phase.value)
        limit = asyncio.timeout_at(when)
        try:
            async with limit:
                attempt.deadline = limit
                return await connect()
        except TimeoutError:
            if not limit.expired():
                raise
            if budgets.sock_connect is not None:
                raise attempt.timeout_error(attempt.current_phase, budgets.sock_connect, "sock_connect") from None
            if attempt.budget is None:
                raise
            raise attempt.timeout_error(*attempt.budget) from None
        finally:
            attempt.deadline = None

    async def _start_tls_connection(
        self,
        underlying_transport: asyncio.Transport,
        req: ClientRequest,
        timeout: aiohttp.ClientTimeout,
        client_error: type[Exception] = ClientConnectorError,
    ) -> tuple[asyncio.BaseTransport, ResponseHandler]:
        attempt = current_attempt.get()
        if not self._hardening.tells_only:
            _refuse_glued_plaintext(underlying_transport, req, attempt)
        connect = functools.partial(
            super()._start_tls_connection, underlying_transport, req=req, timeout=timeout, client_error=client_error
        )
        if attempt is None:
            return await connect()
        if attempt.tunnel is not None:
            tunnel_answered(attempt.tunnel, 200)
        proxy = str(req.proxy.origin()) if req.proxy is not None else None
        attempt.aim(port=req.port, proxy=proxy, pin=_pin(self._get_fingerprint(req)))
        connected = await self._within_budget(attempt, Phase.TLS, connect)
        protocol = connected[1]
        if isinstance(protocol, TimedResponseHandler) and self._hardening.context is not None:
            protocol.generation = attempt.tls_generation
        return connected

    def _get_ssl_context(self, req: ClientRequest) -> ssl.SSLContext | None:
        tls = self._hardening.tls
        if tls is None or not req.is_ssl():
            return split_handshakes(super()._get_ssl_context(req))
        chosen = self._ssl if req.ssl is True else req.ssl
        context, attempt = self._hardening.context, current_attempt.get()
        if isinstance(chosen, ssl.SSLContext) and chosen is not context:
            if chosen.verify_mode is ssl.CERT_NONE and not tls.allow_unverified:
                raise UnverifiedRequestError(_REFUSED.format(req.url.host, "a context with CERT_NONE"))
            if attempt is not None and not isinstance(chosen, SharedSSLContext):
                attempt.tls_generation = None
            return split_handshakes(chosen)
        if chosen is False:
            if not tls.allow_unverified:
                raise UnverifiedRequestError(_REFUSED.format(req.url.host, "ssl=False"))
            if attempt is not None:
                attempt.tls_generation = None
            return split_handshakes(super()._get_ssl_context(req))
        if attempt is not None and context is not None:
            attempt.tls_generation = context.generation
        return context

    def _close(self, *, abort_ssl: bool = False) -> list[Awaitable[object]]:
        waiters = super()._close(abort_ssl=abort_ssl)
        resolver = self._hardening.resolver
        if resolver is not None:
            resolver.release()
        return waiters


_REFUSED: Final = (
    "{} would not be verified ({}); name its authority in TLSSettings(ca_files=...), "
    "or allow it with TLSSettings(allow_unverified=True)"
)


class UnsplitTCPConnector(TimedConnector, aiohttp.TCPConnector):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The same for a TCP connector that connects in a way of its own: its set-up, and the handshake in it."""

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        attempt = current_attempt.get()
        if attempt is not None:
            attempt.tls_port = req.port
        return await super()._create_connection(req, traces, timeout)

    def _get_ssl_context(self, req: ClientRequest) -> ssl.SSLContext | None:
        return split_handshakes(super()._get_ssl_context(req))


def _timing_of(traces: list[Trace]) -> RequestTiming | None:
    """Find our timing among the traces of a request, and whether another instrumentation makes its span."""
    found: RequestTiming | None = None
    for trace in traces:
        context: Any = trace._trace_config_ctx
        if isinstance(context, RequestTiming):
            found = context
            break
    if found is not None and len(traces) > 1:
        found.traced_elsewhere = any(_is_instrumentation(trace._trace_config) for trace in traces)
    return found


def _is_instrumentation(config: aiohttp.TraceConfig) -> bool:
    if getattr(config, "_is_instrumented_by_opentelemetry", False):
        return True
    return any(
        getattr(receiver, "__module__", "").startswith("opentelemetry.instrumentation")
        for receiver in config.on_request_start
    )


def _make_socket(addr_info: AddrInfo) -> socket.socket:
    """Make a socket for the race that is running in this context."""
    attempt = current_attempt.get()
    if attempt is None or attempt.race is None:
        family, kind, proto, _, _ = addr_info
        return socket.socket(family=family, type=kind, proto=proto)
    return attempt.race.make_socket(addr_info)


def _refuse_glued_plaintext(transport: asyncio.Transport, req: ClientRequest, attempt: Attempt | None) -> None:
    protocol = transport.get_protocol()
    if not isinstance(protocol, TimedResponseHandler) or not protocol.has_unread_bytes:
        return
    transport.abort()
    exc = PlaintextBoundaryError(
        f"the proxy {req.proxy.origin() if req.proxy else ''} sent plaintext behind its 200 to CONNECT; "
        "the tunnel is refused, for those bytes would stand in front of the encrypted stream"
    )
    if attempt is not None and attempt.tunnel is not None:
        tunnel_answered(attempt.tunnel, 200, exc)
    raise exc


def _pin(fingerprint: aiohttp.Fingerprint | None) -> bytes | None:
    return None if fingerprint is None else fingerprint.fingerprint


def _own(exc: BaseException, attempt: Attempt) -> BaseException:
    """Return an error of the attempt's own: all that wait for one lookup are given the same object."""
    if isinstance(exc, PhaseTimeoutError):
        return attempt.timeout_error(Phase.DNS, exc.budget, "dns")
    return exc

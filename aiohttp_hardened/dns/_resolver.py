"""The resolvers that connectors get: ours in front of ``aiohttp.AsyncResolver``, and a caller's own, bounded."""

from __future__ import annotations

import asyncio
import socket
import weakref
from typing import TYPE_CHECKING, Final, TypeVar

from aiohttp.abc import AbstractResolver, ResolveResult

from aiohttp_hardened.dns._channel import channel_for, last_good_answers
from aiohttp_hardened.dns._errors import NAME_SERVERS_FAIL, closed, typed
from aiohttp_hardened.dns._fallback import ask_system
from aiohttp_hardened.dns._lookup import look_up
from aiohttp_hardened.dns._stale import SECONDS_TO_WAIT
from aiohttp_hardened.exceptions import DNSLookupError, PhaseTimeoutError
from aiohttp_hardened.timing._dns import current_lookup
from aiohttp_hardened.timing._host import normalise_host
from aiohttp_hardened.timing._lookup_words import HOST_NOT_FOUND, NO_DATA
from aiohttp_hardened.timing._phase import Phase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from aiohttp_hardened._settings import DNSSettings
    from aiohttp_hardened.dns._channel import Channel
    from aiohttp_hardened.dns._stale import Address, Key
    from aiohttp_hardened.timing._dns import Source

    Answer = tuple[Sequence[Address], Source]

T = TypeVar("T")

_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class HardenedResolver(AbstractResolver):
    """Names to addresses with a deadline, typed failures, and last good answers.

    Made by ``open()`` for one connector of the running loop, which closes it. A stale
    answer is one for a moment: whoever caches it (aiohttp does, for ``cache_ttl``) must
    drop it once it is handed out, and ask again. ``current_lookup``'s ``source`` is
    ``"stale"`` then.

    Args:
        settings: How names become addresses.
        deadline: Seconds for one lookup; ``None``: until c-ares gives up.
        channel: The loop's channel, acquired; ``None``: the system resolves everything.
    """

    def __init__(self, settings: DNSSettings, deadline: float | None, channel: Channel | None) -> None:
        self._settings = settings
        self._deadline = deadline
        self._channel = channel
        self._suffixes = tuple(suffix.lower() for suffix in settings.system_suffixes)
        self._answers = last_good_answers(None if channel is None else settings.nameservers)
        self._refreshing: dict[Key, asyncio.Task[Answer]] = {}
        self._waiting: set[asyncio.Timeout] = set()
        self._closed = False
        self._finalizer: weakref.finalize[..., HardenedResolver] | None = None
        if channel is not None:
            self._finalizer = weakref.finalize(self, channel.release)
            self._finalizer.atexit = False

    @classmethod
    def open(cls, settings: DNSSettings, deadline: float | None) -> HardenedResolver:
        """Make a resolver on the running loop's channel.

        Args:
            settings: How names become addresses.
            deadline: Seconds for one lookup; ``None``: until c-ares gives up.

        Raises:
            SettingsError: ``aiodns`` is missing.
        """
        return cls(settings, deadline, channel_for(settings.nameservers) if settings.resolver == "aiodns" else None)

    def release(self) -> None:
        """Give the channel back; lookups that are under way, and all later ones, are refused."""
        if self._closed:
            return
        self._closed = True
        for task in self._refreshing.values():
            task.cancel()
        for waiting in self._waiting:
            waiting.reschedule(asyncio.get_running_loop().time())
        if self._finalizer is not None:
            self._finalizer()

    async def close(self) -> None:
        """Give the channel back."""
        self.release()

    def evict(self, host: str) -> bool:
        """Forget the answers for a name whose every address failed to connect: c-ares' own, and soon the last good one.

        Returns:
            Whether it did; ``False`` within a second of the last time for this name. To
            look it up again now would bring the same answer, or a query too many.
        """
        self._answers.is_unreachable(host.lower())
        if self._channel is None or self._closed:
            return False
        return self._channel.flush(normalise_host(host))

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Look a name up.

        Args:
            host: The name; a trailing dot stops the search list.
            port: Goes into the result.
            family: ``AF_UNSPEC`` asks for A and AAAA side by side.

        Raises:
            DNSLookupError: The name servers' answer is no address; see ``.reason``.
            PhaseTimeoutError: There was none within the deadline.
            aiohttp.ClientConnectionError: The resolver is closed.
        """
        if self._closed:
            raise closed()
        waiting = asyncio.timeout(None)
        try:
            async with waiting:
                self._waiting.add(waiting)
                try:
                    addresses, source = await self._answer(host, int(family))
                finally:
                    self._waiting.discard(waiting)
        except TimeoutError:
            if waiting.expired():
                raise closed() from None
            raise
        lookup = current_lookup.get()
        if lookup is not None and source != "lookup":
            lookup.source = source
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AddressFamily(found),
                proto=0,
                flags=_NUMERIC,
            )
            for address, found in addresses
        ]

    async def _answer(self, host: str, family: int) -> Answer:
        key = (host.lower(), family)
        last = self._answers.get(key, self._settings.stale_ttl)
        if last is None:
            return await self._fresh(host, family, key)
        if self._answers.is_left_alone(key):
            return last, "stale"
        refresh = self._refreshing.get(key)
        if refresh is None:
            refresh = asyncio.create_task(self._fresh(host, family, key))
            self._refreshing[key] = refresh
            refresh.add_done_callback(lambda task: self._refreshed(key, task))
        done, _ = await asyncio.wait((refresh,), timeout=SECONDS_TO_WAIT)
        if refresh.cancelled():
            raise closed()
        if done and not _is_stale_better(refresh):
            return refresh.result()
        self._answers.refresh_failed(key)
        return last, "stale"

    def _refreshed(self, key: Key, task: asyncio.Task[Answer]) -> None:
        self._refreshing.pop(key, None)
        if not task.cancelled() and _is_stale_better(task):
            # Also when nobody waits for it any more.
            self._answers.refresh_failed(key)

    async def _fresh(self, host: str, family: int, key: Key) -> Answer:
        """Ask, and keep the answer for the time when nobody gives one."""
        try:
            addresses, source = await _within(self._deadline, host, self._ask(host, family))
        except DNSLookupError as exc:
            if exc.reason not in NAME_SERVERS_FAIL:
                self._answers.forget(key)
            if exc.reason == NO_DATA:
                # c-ares would repeat it for an hour, whatever the zone says (its ares_qcache.c looks at
                # the SOA of "no such name" only): a name between two deployments would stay away so long.
                self.evict(host)
            raise
        self._answers.keep(key, addresses)
        return addresses, source

    async def _ask(self, host: str, family: int) -> Answer:
        if self._channel is None or normalise_host(host).endswith(self._suffixes):
            return await ask_system(host, family), "system"
        patient = self._deadline is not None
        try:
            return await look_up(self._channel, host, family, patient=patient), "lookup"
        except DNSLookupError as exc:
            if exc.reason not in (HOST_NOT_FOUND, NO_DATA) or "." in host:
                raise
            # One label: the machine's own name, say, a container's, a neighbour's.
            try:
                return await ask_system(host, family), "system"
            except DNSLookupError:
                raise exc from None


class WrappedResolver(AbstractResolver):
    """A caller's own resolver within our deadline; the caller closes it.

    Args:
        resolver: The caller's.
        deadline: Seconds for one lookup; ``None``: no limit.
    """

    def __init__(self, resolver: AbstractResolver, deadline: float | None) -> None:
        self._resolver = resolver
        self._deadline = deadline

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Ask the caller's resolver.

        Raises:
            DNSLookupError: It raised an ``OSError``, which is the cause; without a
                status to go by the reason is ``server_failure``.
            PhaseTimeoutError: It gave no answer within the deadline.
            aiohttp.ClientConnectionError: It is closed, or was closed under the lookup.
        """
        return await _within(self._deadline, host, self._ask(host, port, family))

    async def _ask(self, host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
        try:
            return await self._resolver.resolve(host, port, family)
        except Exception as exc:
            failure = typed(exc)
            if failure is exc:
                raise
            raise failure from exc

    async def close(self) -> None:
        """Leave the resolver to its owner."""


def _is_stale_better(refresh: asyncio.Task[Answer]) -> bool:
    """Say whether a refresh ended in a way that says nothing of the name."""
    exc = refresh.exception()
    if isinstance(exc, DNSLookupError):
        return exc.reason in NAME_SERVERS_FAIL
    return isinstance(exc, PhaseTimeoutError)


async def _within(deadline: float | None, host: str, answer: Awaitable[T]) -> T:
    """Wait for an answer within a deadline.

    Raises:
        PhaseTimeoutError: The deadline is over.
    """
    limit = asyncio.timeout(deadline)
    try:
        async with limit:
            return await answer
    except TimeoutError:
        if deadline is None or not limit.expired():
            raise
        raise PhaseTimeoutError(
            f"dns lookup of {host} timed out after {deadline:.2f} s", phase=Phase.DNS, budget=deadline
        ) from None

"""One c-ares channel per event loop and set of name servers, shared and counted.

A channel is a thread and, on Linux, an inotify instance, of which a user has 128. It is
made for the first that asks and lingers for a moment after the last one left: services
that build a session per request would otherwise make a channel per request.

Private names that it touches: ``aiohttp.AsyncResolver._resolver`` and
``aiodns.DNSResolver._channel``, to empty c-ares' own query cache, which has no public
way (``tests/dns/test_channel.py`` proves both).
"""

from __future__ import annotations

import asyncio
import math
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiohttp import AsyncResolver

from aiohttp_hardened.dns._stale import LastGoodAnswers
from aiohttp_hardened.exceptions import SettingsError

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver

SECONDS_TO_LINGER: Final = 1.0
SECONDS_PER_TRY: Final = 1.0
_SECONDS_BETWEEN_FLUSHES: Final = 1.0
_ELSEWHERE: Final = "127.0.0.1:9"
"""The discard port: part of the list for no longer than it takes to write it again."""

Key = tuple[tuple[str, ...], int]

# Weak on both sides: a channel holds its loop. Who uses it holds it, and after that the loop's own timer,
# so that it dies with a loop that is closed meanwhile.
_channels: Final[
    weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakValueDictionary[Key, Channel]]
] = weakref.WeakKeyDictionary()


def tries_for(deadline: float | None) -> int:
    """Return how often c-ares must ask so that it does not give up before our deadline.

    c-ares doubles its timeout with each round over the servers, from
    ``SECONDS_PER_TRY``, so n tries wait 2^n - 1 of those; one more is for the
    jitter that it takes off each.

    Args:
        deadline: Seconds; ``None``: there is none.
    """
    if deadline is None:
        return 10
    return max(3, math.ceil(math.log2(deadline / SECONDS_PER_TRY + 1)) + 2)


class _PatientLoop:
    """A loop that takes answers after it was closed, and drops them.

    c-ares ends its queries when a channel is destroyed, on whatever thread, and
    aiodns hands each to the loop; that of a forgotten session may be closed by then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        """Be the loop in everything else."""
        return getattr(self._loop, name)

    def call_soon_threadsafe(self, *callback: Any) -> None:
        """Call something on the loop, if it still runs."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(*callback)


class Channel:
    """A c-ares channel with its last good answers, for all resolvers of a loop that ask the same servers.

    Args:
        loop: The loop that it belongs to.
        key: Name servers and tries.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, key: Key) -> None:
        servers, tries = key
        options: dict[str, Any] = {"nameservers": list(servers)} if servers else {}
        try:
            self._resolver: AbstractResolver | None = AsyncResolver(
                loop, timeout=SECONDS_PER_TRY, tries=tries, **options
            )
        except RuntimeError as exc:
            raise SettingsError(
                f'dns.resolver="aiodns" needs the package aiodns ({exc}); install it, or choose resolver="system"'
            ) from exc
        self._inner.loop = _PatientLoop(loop)
        self._loop = weakref.ref(loop)
        self._key = key
        self._users = 0
        self._closing: asyncio.TimerHandle | None = None
        self._flushed: dict[str, float] = {}
        self.answers = LastGoodAnswers()

    @property
    def _inner(self) -> Any:
        """aiodns' resolver behind aiohttp's."""
        resolver: Any = self._resolver
        return resolver._resolver  # noqa: SLF001  (see the module's docstring)

    @property
    def resolver(self) -> AbstractResolver | None:
        """aiohttp's resolver on this channel; ``None`` once it is closed."""
        return self._resolver

    def acquire(self) -> None:
        """Count one more user."""
        self._users += 1
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def release(self) -> None:
        """Count one user less; after the last one the channel lingers, and is closed."""
        self._users -= 1
        loop = self._loop()
        if self._users or self._resolver is None:
            return
        # Whoever waited is gone; c-ares would go on asking a silent server.
        self._inner.cancel()
        if loop is None or loop.is_closed() or not loop.is_running():
            self.close()
        else:
            loop.call_soon_threadsafe(self._linger)

    def _linger(self) -> None:
        loop = self._loop()
        if loop is not None and not self._users and self._closing is None and self._resolver is not None:
            self._closing = loop.call_later(SECONDS_TO_LINGER, self.close)

    def close(self) -> None:
        """Destroy the channel; lookups that are under way end with an error at once."""
        self._closing = None
        if self._users:
            return
        loop = self._loop()
        if loop is not None and loop in _channels:
            _channels[loop].pop(self._key, None)
        # Dropping aiodns' resolver is what destroys the channel; ``AsyncResolver.close()`` only cancels.
        self._resolver = None

    def flush(self, host: str) -> None:
        """Empty c-ares' own query cache, at most once per second and name.

        c-ares forgets its answers when its list of servers changes.
        """
        loop = self._loop()
        if self._resolver is None or loop is None:
            return
        now = loop.time()
        if now - self._flushed.get(host, -math.inf) < _SECONDS_BETWEEN_FLUSHES:
            return
        if len(self._flushed) > 1000:
            self._flushed.clear()
        self._flushed[host] = now
        ares = self._inner._channel  # noqa: SLF001
        servers = list(ares.servers)
        ares.servers = [*servers, _ELSEWHERE]
        ares.servers = servers


def channel_for(servers: tuple[str, ...], deadline: float | None) -> Channel:
    """Return the running loop's channel for these servers, acquired.

    Args:
        servers: ``host`` or ``host:port``; empty: the system's configuration.
        deadline: Seconds for one lookup.

    Raises:
        SettingsError: ``aiodns`` is missing.
    """
    loop = asyncio.get_running_loop()
    key = (servers, tries_for(deadline))
    channels = _channels.setdefault(loop, weakref.WeakValueDictionary())
    channel = channels.get(key)
    if channel is None:
        channel = channels[key] = Channel(loop, key)
    channel.acquire()
    return channel

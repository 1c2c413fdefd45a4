"""One c-ares channel per event loop and set of name servers, shared and counted.

A channel is a thread and, on Linux, an inotify instance, of which a user has 128. It is
made for the first that asks and lingers for a moment after the last one left: services
that build a session per request would otherwise make a channel per request.

Private names that it touches, in ``Channel._aiodns`` and below it:
``aiohttp.AsyncResolver._resolver`` and ``aiodns.DNSResolver._channel``. Without them
c-ares' own query cache cannot be emptied, and neither a query that nobody waits for nor a
channel with such queries can be ended at once.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import AsyncResolver

from aiohttp_hardened.dns._errors import closed
from aiohttp_hardened.dns._search import configuration_stamp
from aiohttp_hardened.dns._stale import LastGoodAnswers
from aiohttp_hardened.exceptions import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.abc import AbstractResolver

    from aiohttp_hardened.dns._search import Stamp
    from aiohttp_hardened.dns._stale import Address

SECONDS_TO_LINGER: Final = 1.0
SECONDS_FOR_FIRST_TRY: Final = 0.5
"""c-ares' first timeout for a server that it does not know; it doubles it, and once it knows
a server it takes five times its usual answering time, 0.25 s at least."""
TRIES: Final = 3
"""c-ares' own default. A server that refuses is asked so often within a millisecond, so this
is no place to make room for a deadline: who has time left asks again (``_lookup.py``)."""
_SECONDS_BETWEEN_FLUSHES: Final = 1.0
_MOST_FLUSHED: Final = 1000
_ELSEWHERE: Final = "127.0.0.1:9"
"""The discard port: part of the list for no longer than it takes to write it again."""

Servers = tuple[str, ...]


class _OfLoop:
    """What all resolvers of one loop share.

    The channels are held by their users only, and after the last one by the loop's own
    timer: a channel dies with a loop that is closed meanwhile. No channel holds its loop.
    """

    def __init__(self) -> None:
        self.channels: weakref.WeakValueDictionary[Servers, Channel] = weakref.WeakValueDictionary()
        self.answers: dict[Servers | None, LastGoodAnswers] = {}


_loops: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop]] = weakref.WeakKeyDictionary()


class _MortalLoop:
    """A loop that may be closed before c-ares has given all its answers.

    c-ares answers on a thread of its own, the last queries when their channel is
    destroyed, and aiodns hands each answer to the loop. A closed loop of asyncio
    refuses it with an exception that nobody can catch, and one of uvloop keeps it, and
    the channel with it, for ever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)

    def __getattr__(self, name: str) -> Any:
        """Be the loop in everything that is done while it runs."""
        return getattr(self._loop(), name)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        """Deliver an answer, or drop it."""
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            with suppress(RuntimeError):  # it was closed at this very moment
                loop.call_soon_threadsafe(callback, *args)

    def remove_reader(self, fd: int) -> None:
        """Forget a socket of c-ares (where there is no inotify instance to be had)."""
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(fd)

    def remove_writer(self, fd: int) -> None:
        """Forget a socket of c-ares (where there is no inotify instance to be had)."""
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            loop.remove_writer(fd)


class Channel:
    """A c-ares channel for all resolvers of a loop that ask the same servers.

    Args:
        loop: The loop that it belongs to.
        servers: ``host`` or ``host:port``; empty: the system's configuration.

    Raises:
        SettingsError: ``aiodns`` is missing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, servers: Servers) -> None:
        self._loop = weakref.ref(loop)
        self._servers = servers
        self._users = 0
        self._closing: asyncio.TimerHandle | None = None
        self._flushed: dict[str, float] = {}
        self._pinned: Stamp = None
        self._hosts_file: Any = None
        self._resolver: AsyncResolver | None = self._make_resolver(loop)

    def _make_resolver(self, loop: asyncio.AbstractEventLoop) -> AsyncResolver:
        mortal = cast("asyncio.AbstractEventLoop", _MortalLoop(loop))
        # What stands behind the first one goes on to ``aiodns.DNSResolver(nameservers, loop, ...)``.
        options = (list(self._servers) or None, mortal)
        try:
            return AsyncResolver(mortal, *options, timeout=SECONDS_FOR_FIRST_TRY, tries=TRIES)
        except RuntimeError as exc:
            raise SettingsError(
                f'dns.resolver="aiodns" needs the package aiodns ({exc}); install it, or choose resolver="system"'
            ) from exc

    @property
    def is_closed(self) -> bool:
        """Whether it lingered for long enough."""
        return self._resolver is None

    @property
    def _aiodns(self) -> Any:
        return cast("Any", self._resolver)._resolver  # noqa: SLF001  (see the module's docstring)

    def resolver(self) -> AbstractResolver:
        """Return aiohttp's resolver on this channel.

        Raises:
            aiohttp.ClientConnectionError: The channel is closed.
        """
        if self._resolver is None:
            raise closed()
        if self._pinned is not None and self._pinned != configuration_stamp():
            # To be told its servers, even its own ones, has c-ares follow the configuration no more.
            self._pinned = None
            self._resolver = self._make_resolver(asyncio.get_running_loop())
        return self._resolver

    def in_hosts_file(self, host: str, family: int) -> list[Address]:
        """Return what ``/etc/hosts`` says of a name; of ``localhost``, and of a literal, what is known without it.

        A name with one family there has none elsewhere, so it must be looked at before
        A and AAAA become two questions.
        """
        if self._hosts_file is None:
            import pycares  # noqa: PLC0415  (it comes with aiodns, which may be missing)

            # Without sockets: no thread, no inotify instance, and the answer comes within the call.
            self._hosts_file = pycares.Channel(lookups="f", sock_state_cb=_no_sockets)
        found: list[Address] = []

        def take(result: Any, error: int | None) -> None:
            if error is None:
                found.extend((node.addr[0].decode("ascii"), int(node.family)) for node in result.nodes)

        self._hosts_file.getaddrinfo(host.rstrip("."), None, family=family, type=socket.SOCK_STREAM, callback=take)
        return found

    def acquire(self) -> None:
        """Count one more user."""
        self._users += 1
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def release(self) -> None:
        """Count one user less, from any thread; after the last one the channel lingers, and is closed."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            self.close()
            return
        try:
            loop.call_soon_threadsafe(self._leave)
        except RuntimeError:  # it was closed at this very moment
            self.close()

    def _leave(self) -> None:
        self._users -= 1
        loop = self._loop()
        if self._users or self._resolver is None or loop is None:
            return
        # Whoever waited is gone, but c-ares would go on asking.
        self._aiodns.cancel()
        self._closing = loop.call_later(SECONDS_TO_LINGER, self.close)

    def close(self) -> None:
        """Destroy the channel; pycares does it on a thread of its own, which ends what is under way."""
        self._closing = None
        if self._resolver is not None:
            self._aiodns._channel.close()  # noqa: SLF001  (see the module's docstring)
            self._resolver = None
            self._hosts_file = None

    def __del__(self) -> None:
        """Destroy the channel of a loop that was closed before it had lingered for long enough."""
        if getattr(self, "_resolver", None) is not None:
            self.close()

    def flush(self, host: str) -> bool:
        """Empty c-ares' own query cache, at most once per second and name.

        c-ares forgets its answers when its list of servers changes.

        Returns:
            Whether it was done.
        """
        loop = self._loop()
        if self._resolver is None or loop is None:
            return False
        now = loop.time()
        if now - self._flushed.get(host, -_SECONDS_BETWEEN_FLUSHES) < _SECONDS_BETWEEN_FLUSHES:
            return False
        self._flushed.pop(host, None)
        self._flushed[host] = now
        if len(self._flushed) > _MOST_FLUSHED:
            del self._flushed[next(iter(self._flushed))]
        ares = self._aiodns._channel  # noqa: SLF001  (see the module's docstring)
        servers = list(ares.servers)
        ares.servers = [*servers, _ELSEWHERE]
        ares.servers = servers
        if not self._servers:
            self._pinned = configuration_stamp()
        return True


def _no_sockets(fd: int, readable: bool, writable: bool) -> None:  # noqa: FBT001  (pycares calls it so)
    """Take note of a socket; reading a file needs none."""


def channel_for(servers: Servers) -> Channel:
    """Return the running loop's channel for these servers, acquired.

    Args:
        servers: ``host`` or ``host:port``; empty: the system's configuration.

    Raises:
        SettingsError: ``aiodns`` is missing.
    """
    loop = asyncio.get_running_loop()
    _close_those_of_closed_loops()
    channels = _loops.setdefault(loop, _OfLoop()).channels
    channel = channels.get(servers)
    if channel is None or channel.is_closed:
        channel = channels[servers] = Channel(loop, servers)
    channel.acquire()
    return channel


def _close_those_of_closed_loops() -> None:
    """Destroy channels that something still holds though their loop is gone: a kept traceback, say."""
    for loop, shared in list(_loops.items()):
        if loop.is_closed():
            for channel in list(shared.channels.values()):
                channel.close()


def last_good_answers(servers: Servers | None) -> LastGoodAnswers:
    """Return the running loop's answers of these servers; ``None``: the system's resolver."""
    answers = _loops.setdefault(asyncio.get_running_loop(), _OfLoop()).answers
    return answers.setdefault(servers, LastGoodAnswers())

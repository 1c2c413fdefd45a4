"""What is known of a pooled connection, and the pools whose connections are counted."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator

    from aiohttp_hardened.timing._hooks import Hooks

ConnectionState = Literal["active", "idle"]

_numbers: Final = itertools.count(1)


class Connection:
    """One connection, from the end of its set-up to its loss.

    Args:
        hooks: The hooks of the attempt that made it.
        server_address: Normalised host that it was made for.
        server_port: Its port.
        scheme: ``http`` or ``https``.
        peer_address: The address at the other end (a proxy's, when proxied).
        peer_port: Its port.
    """

    def __init__(
        self,
        hooks: Hooks,
        *,
        server_address: str,
        server_port: int | None,
        scheme: str,
        peer_address: str | None,
        peer_port: int | None,
    ) -> None:
        self.number = next(_numbers)
        self.hooks = hooks
        self.server_address = server_address
        self.server_port = server_port
        self.scheme = scheme
        self.peer_address = peer_address
        self.peer_port = peer_port
        self.opened = time.perf_counter()
        self.lifetime = 0.0
        """Seconds; set when it is closed."""
        self.state: dict[object, Any] = {}
        """What hooks keep about it (the span context that later requests link to)."""
        self.closed = False

    def close(self) -> None:
        """Note that the connection is lost; only the first call counts."""
        if self.closed:
            return
        self.closed = True
        self.lifetime = time.perf_counter() - self.opened
        self.hooks.connection_closed(self)


class Pool(Protocol):
    """What a connector shows of its connections."""

    @property
    def event_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it belongs to."""
        ...

    def connection_states(self) -> Iterable[tuple[Connection, ConnectionState]]:
        """Yield each live connection with its state; called from another thread."""
        ...


_pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()
_lock: Final = threading.Lock()


def register_pool(pool: Pool) -> None:
    """Let the connections of a pool be counted for as long as it lives."""
    with _lock:
        _pools.add(pool)


def forget_pool(pool: Pool) -> None:
    """Count the connections of a pool no more."""
    with _lock:
        _pools.discard(pool)


def _live() -> tuple[Pool, ...]:
    with _lock:
        return tuple(_pools)


def open_connections() -> Iterator[tuple[Connection, ConnectionState]]:
    """Yield every live connection of this process with its state."""
    for pool in _live():
        yield from pool.connection_states()


def loops() -> set[asyncio.AbstractEventLoop]:
    """Return the event loops of the pools."""
    return {pool.event_loop for pool in _live()}

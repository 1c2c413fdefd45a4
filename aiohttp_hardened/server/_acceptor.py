"""Accept connections and do their TLS handshakes, each inside one coroutine that sees its end.

asyncio's own server tells nobody of a handshake that fails, stalls or is given up. Here a
handshake is one ``await``: what it returns or raises is the end, and there is no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any, Final

from aiohttp_hardened.timing._handshake import OpenHandshake
from aiohttp_hardened.timing._hooks import contained

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

    from aiohttp_hardened.timing._handshake import HandshakeHook, HandshakeRecord

_logger: Final = logging.getLogger("aiohttp_hardened")

_MOST_AT_ONCE: Final = 128
"""Connections that are accepted before the loop gets its turn."""
_SECONDS_TO_REST: Final = 1.0
"""When nothing can be accepted, for example for want of a file descriptor; asyncio rests as long."""


class Acceptor:
    """Serves the sockets of one site.

    Args:
        protocol: Makes the protocol of a connection; it hears of the connection when TLS stands.
        context: What the server shows.
        handshake_timeout: Seconds for one handshake.
        hooks: Take the record of each handshake.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
        handshake_timeout: float,
        hooks: Iterable[HandshakeHook],
    ) -> None:
        self._protocol = protocol
        self._context = context
        self._handshake_timeout = handshake_timeout
        self._hooks = tuple(hooks)
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[socket.socket, asyncio.TimerHandle | asyncio.Task[None] | None] = {}
        """With what has to be cancelled when they close."""
        self._handshakes: set[asyncio.Task[None]] = set()

    def accept(self, listener: socket.socket) -> None:
        """Accept from a socket that listens and does not block; it is closed by ``stop``."""
        self._listeners[listener] = None
        try:
            self._loop.add_reader(listener, self._accept_waiting, listener)
        except NotImplementedError:  # Windows' default loop
            self._listeners[listener] = self._loop.create_task(self._accept_one_by_one(listener))

    async def stop(self) -> None:
        """Accept no more, and give up the handshakes that have begun."""
        for listener, pending in self._listeners.items():
            if pending is not None:
                pending.cancel()
            if not isinstance(pending, asyncio.Task):
                self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        handshakes = tuple(self._handshakes)
        if handshakes:
            # A task that is cancelled before its first step would never see its connection.
            await asyncio.sleep(0)
            for handshake in handshakes:
                handshake.cancel()
            await asyncio.wait(handshakes)

    def _accept_waiting(self, listener: socket.socket) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                _logger.error("connections cannot be accepted, trying again in a second: %s", exc)  # noqa: TRY400  # a trace says no more
                self._loop.remove_reader(listener)
                self._listeners[listener] = self._loop.call_later(_SECONDS_TO_REST, self.accept, listener)
                return
            connection.settimeout(0)
            self._begin(connection)

    async def _accept_one_by_one(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError as exc:
                _logger.error("connections cannot be accepted, trying again in a second: %s", exc)  # noqa: TRY400  # same
                await asyncio.sleep(_SECONDS_TO_REST)
            else:
                self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        task = self._loop.create_task(self._shake_hands(connection))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        handshake = OpenHandshake(*_names(connection))
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._context, ssl_handshake_timeout=self._handshake_timeout
            )
            # A connection that was lost at the right moment is success for the loop.
            secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
            if secured is None:
                transport.abort()
                raise ConnectionResetError("the connection was lost during the TLS handshake")  # noqa: TRY301  # one end for all
        except asyncio.CancelledError:
            # The transport may not have begun; it owns the descriptor, and closes it when it sees the end.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            self._tell(handshake.given_up())
            raise
        except Exception as exc:
            record = handshake.failed(exc)
            self._tell(record)
            if not isinstance(exc, OSError):
                raise
            # Anybody can cause it from outside, a port scanner without end: telemetry counts it.
            _logger.debug("TLS handshake with %s failed: %s (%s)", handshake.peer, record.error_type, exc)
        else:
            self._tell(handshake.stood(secured))

    def _tell(self, record: HandshakeRecord) -> None:
        for hook in self._hooks:
            with contained(hook):
                hook(record)


def _names(connection: socket.socket) -> tuple[Any, Any]:
    """Return the address of the client and the one that it connected to; a client that is gone has none."""
    peer: Any = None
    with contextlib.suppress(OSError):
        peer = connection.getpeername()
    return peer, connection.getsockname()

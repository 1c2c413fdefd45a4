"""When a websocket's life is timed.

Starts: when the answer to the upgrade, a 101, is read.
Stops: at the end of the closing handshake, or when the connection is lost or dropped.
Seam: ``ResponseHandler.set_parser`` and ``Connection.add_callback``; aiohttp sends no signal after the upgrade.
Blind: upgrades to other protocols.

Its record is that of a body, for that is where it stands in a request, and says so by ``network.protocol.name``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from aiohttp_hardened.timing import _keys
from aiohttp_hardened.timing._body import ABANDONED, CANCELLED, COMPLETE, CUT, emit_body
from aiohttp_hardened.timing._errors import public_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp_hardened.timing._request import Attempt

_NO_CODE: Final = 1005
"""RFC 6455, section 7.1.5: the Close frame had none."""
_ERRORS: Final = frozenset({1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})
"""Codes that say more than goodbye (RFC 6455, section 7.4.1, and IANA); an application's own say anything."""


class Websocket:
    """A websocket, until its one record is made.

    Args:
        attempt: Whose upgrade it is.
        start: The clock when the 101 was read.
        heard: What aiohttp calls when anything came, where there is a heartbeat: a method of the websocket.
    """

    cut = False
    """Nothing that is raised needs to be explained by its end."""
    close_code: int | None = None
    """Of the Close frame that came."""
    failure: BaseException | None = None
    """What came was no websocket's."""

    def __init__(self, attempt: Attempt, start: int, heard: Callable[[], None] | None) -> None:
        self._attempt = attempt
        self._start = start
        self._socket: Any = getattr(heard, "__self__", None)
        self._ended = False

    def closing(self, code: int) -> None:
        """Take note of the peer's goodbye; 0: a Close frame without a code."""
        self.close_code = code or _NO_CODE

    def end(self, raised: BaseException | None) -> None:
        """Take note that its user is done with it; does nothing when it has ended.

        Args:
            raised: The exception that is on its way through the user's code, if any.
        """
        if not self._ended:
            self._emit(*self._outcome(raised))

    def lost(self, exc: BaseException | None, *, dropped: bool) -> None:
        """Take note that the connection is gone under it.

        Args:
            exc: Why, where the transport knows.
            dropped: This side closed it, without a goodbye.
        """
        if self._ended:
            return
        if self.close_code is not None:
            self._emit(COMPLETE, self._code_word())
        elif self.failure is not None:
            self._emit(CUT, public_name(self.failure))
        elif dropped:
            self._emit(ABANDONED, None)
        else:
            self._emit(CUT, "aiohttp.ServerDisconnectedError" if exc is None else "aiohttp.ClientOSError")

    def _outcome(self, raised: BaseException | None) -> tuple[str, str | None]:
        if isinstance(raised, (asyncio.CancelledError, GeneratorExit)):
            return CANCELLED, None
        failure = self.failure or (self._socket.exception() if self._socket is not None else None)
        if failure is not None:
            return CUT, public_name(failure)
        if self.close_code is not None:
            return COMPLETE, self._code_word()
        if isinstance(raised, (aiohttp.ClientError, OSError)):
            return CUT, public_name(raised)
        return ABANDONED, None

    def _code_word(self) -> str | None:
        return str(self.close_code) if self.close_code in _ERRORS else None

    def _emit(self, outcome: str, error_type: str | None) -> None:
        self._ended = True
        attributes: dict[str, Any] = {_keys.BODY_OUTCOME: outcome, _keys.NETWORK_PROTOCOL_NAME: _keys.WEBSOCKET}
        if self.close_code is not None:
            attributes[_keys.WEBSOCKET_CLOSE_CODE] = self.close_code
        emit_body(self._attempt, self._start, attributes, error_type, cancelled=outcome == CANCELLED)

"""When the response's body is timed.

Starts: when the response's headers are read.
Stops: at its end, or when nobody will read on.
Seam: ``StreamReader.on_eof`` and ``Connection.add_callback``; aiohttp sends no signal
for a body that is cut, dropped or read through ``response.content``.
Blind: a websocket, which has a file of its own; other upgrades.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from aiohttp_hardened.timing import _keys
from aiohttp_hardened.timing._errors import public_name
from aiohttp_hardened.timing._phase import Phase, PhaseRecord, make_record

if TYPE_CHECKING:
    from aiohttp.streams import StreamReader

    from aiohttp_hardened.timing._request import Attempt

COMPLETE: Final = "complete"
CUT: Final = "cut"
ABANDONED: Final = "abandoned"
CANCELLED: Final = "cancelled"


def body_outcome(payload: StreamReader, raised: BaseException | None, *, timer_fired: bool) -> tuple[str, str | None]:
    """Tell how a body ended.

    Args:
        payload: The body.
        raised: The exception that is on its way through the reader, if any.
        timer_fired: The request's ``total`` has run out.

    Returns:
        The outcome, and the error's name when it was cut.
    """
    failure = payload.exception()
    if payload.is_eof() and not isinstance(failure, aiohttp.ClientError):
        return COMPLETE, None
    if isinstance(raised, TimeoutError) or timer_fired:
        return CUT, public_name(raised) if isinstance(raised, TimeoutError) else "TimeoutError"
    if isinstance(raised, asyncio.CancelledError):
        return CANCELLED, None
    if isinstance(failure, (aiohttp.ClientPayloadError, aiohttp.ClientOSError, TimeoutError)):
        return CUT, public_name(failure)
    if isinstance(failure, aiohttp.ServerDisconnectedError):
        return CUT, public_name(failure)
    return ABANDONED, None


class Body:
    """A response's body, until its one record is made.

    Args:
        attempt: Whose response it is.
        payload: Where aiohttp puts it.
        start: The clock when the headers were read.
    """

    __slots__ = ("_attempt", "_payload", "_start", "cut")

    cut: bool
    """It ended early, by a failure."""

    def __init__(self, attempt: Attempt, payload: StreamReader, start: int) -> None:
        self._attempt = attempt
        self._payload: StreamReader | None = payload
        self._start = start
        self.cut = False
        if payload.is_eof():
            self._eof()
        else:
            payload.on_eof(self._eof)

    def _eof(self) -> None:
        if self._payload is not None:
            self._payload = None
            self._emit(COMPLETE, None)

    def end(self, raised: BaseException | None) -> None:
        """Take note that nobody reads on; does nothing when the body has ended.

        Args:
            raised: The exception that is on its way through the reader, if any.
        """
        payload, self._payload = self._payload, None
        if payload is not None:
            self._emit(*body_outcome(payload, raised, timer_fired=self._attempt.timer_fired()))

    def _emit(self, outcome: str, error_type: str | None) -> None:
        self.cut = outcome == CUT
        emit_body(self._attempt, self._start, {_keys.BODY_OUTCOME: outcome}, error_type, cancelled=outcome == CANCELLED)


def emit_body(
    attempt: Attempt, start: int, attributes: dict[str, Any], error_type: str | None, *, cancelled: bool
) -> None:
    """Make the record of what came behind a response's head, and hand it to the hooks.

    Args:
        attempt: Whose response it is.
        start: The clock when the head was read.
        attributes: Of the record.
        error_type: How it failed.
        cancelled: The caller gave up.
    """
    attempt.hooks.emit(
        make_record(
            PhaseRecord,
            phase=Phase.BODY,
            start_ns=attempt.wall(start),
            duration=(attempt.now() - start) / 1e9,
            server_address=attempt.server_address,
            server_port=attempt.server_port,
            attributes=attributes,
            error_type=error_type,
            cancelled=cancelled,
            request_id=attempt.request_id,
            attempt=attempt,
        )
    )

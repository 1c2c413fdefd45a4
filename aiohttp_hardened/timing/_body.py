"""When the response's body is timed.

Starts: when the response's headers are read.
Stops: at its end, or when nobody will read on.
Seam: ``StreamReader.on_eof`` and ``Connection.add_callback``; aiohttp sends no signal
for a body that is cut, dropped or read through ``response.content``.
Blind: websockets and other upgrades have no body.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import aiohttp

from aiohttp_hardened.timing._errors import public_name

if TYPE_CHECKING:
    from aiohttp.streams import StreamReader

COMPLETE: Final = "complete"
CUT: Final = "cut"
ABANDONED: Final = "abandoned"
CANCELLED: Final = "cancelled"


def body_outcome(
    payload: StreamReader, raised: BaseException | None, *, timer_fired: bool
) -> tuple[str, str | None]:
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

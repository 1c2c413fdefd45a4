"""When the request's body is sent.

Starts: when the connection stands; where ``100 Continue`` was asked for, when it came.
Stops: when the last of it is handed to the transport, or the attempt ends before that.
Seam: ``ResponseHandler.start_timeout``: aiohttp starts to wait for the response when it has written the request.
Blind: what the transport and the kernel still hold; a response protocol that is not ours.

It is no phase: the server may answer while it goes on. It is told of on the request's record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp

from aiohttp_hardened.timing import _keys
from aiohttp_hardened.timing._body import ABANDONED, CANCELLED, COMPLETE, CUT

if TYPE_CHECKING:
    from collections.abc import Mapping

OVERTAKEN: Final = "overtaken"
"""The response's head came first."""


class Upload:
    """A request's body, on its way.

    Args:
        start: The clock when it could be sent; ``None``: only when the server says so.
    """

    __slots__ = ("_end", "_start")

    def __init__(self, start: int | None) -> None:
        self._start = start
        self._end: int | None = None

    def may_start(self, now: int) -> None:
        """Take note of ``100 Continue``."""
        if self._start is None:
            self._start = now

    def sent(self, now: int) -> None:
        """Take note that all of it was handed to the transport."""
        self._end = now

    @property
    def doing(self) -> str | None:
        """What is done just now, in words that go before the request; ``None``: it is sent."""
        if self._end is not None:
            return None
        return "waiting for the 100 Continue of" if self._start is None else "sending the body of"

    @property
    def milliseconds(self) -> float | None:
        """How long it took; ``None``: it is not sent."""
        return None if self._end is None or self._start is None else (self._end - self._start) / 1e6

    def attributes(
        self, now: int, *, answered: bool, cancelled: bool, exc: BaseException | None
    ) -> Mapping[str, str | float]:
        """Return what the request's record says of it; nothing where nothing was sent.

        Args:
            now: The clock at the end of the attempt.
            answered: The response's head was read.
            cancelled: The caller gave up.
            exc: What the attempt raised.
        """
        if self._start is None:
            return {}
        if self._end is not None:
            outcome = COMPLETE
        elif answered:
            outcome = OVERTAKEN
        elif cancelled:
            outcome = CANCELLED
        else:
            outcome = ABANDONED if _is_the_callers(exc) else CUT
        end = now if self._end is None else self._end
        return {_keys.UPLOAD_DURATION: (end - self._start) / 1e9, _keys.UPLOAD_OUTCOME: outcome}


def _is_the_callers(exc: BaseException | None) -> bool:
    """Say whether the body's own source failed: aiohttp wraps that; of the network it makes a ``ClientOSError``."""
    return type(exc) is aiohttp.ClientConnectionError and exc.__cause__ is not None

"""A phase while it is open, and how it becomes a record."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp_hardened.timing._errors import error_word
from aiohttp_hardened.timing._lookup_words import TIMED_OUT
from aiohttp_hardened.timing._phase import PhaseRecord, make_record

if TYPE_CHECKING:
    from aiohttp_hardened.timing._phase import Phase, PhaseEvent
    from aiohttp_hardened.timing._request import Attempt


class OpenPhase:
    """One phase from its start until its record is made.

    Args:
        attempt: The attempt that it belongs to.
        phase: Which phase.
        start: ``perf_counter_ns`` at its start.
        server_address: The host it speaks to.
        server_port: Its port.
    """

    end: int | None = None
    exc: BaseException | None = None
    server_answered = False
    """TLS only: the peer's ServerHello was read."""

    def __init__(
        self, attempt: Attempt, phase: Phase, start: int, server_address: str, server_port: int | None
    ) -> None:
        self.attempt = attempt
        self.phase = phase
        self.start = start
        self.server_address = server_address
        self.server_port = server_port
        self.attributes: dict[str, Any] = {}
        self.events: list[PhaseEvent] = []

    @property
    def milliseconds(self) -> float:
        """How long it took, or has taken so far."""
        return ((self.end or self.attempt.now()) - self.start) / 1e6

    def twin(self) -> OpenPhase:
        """Return an open phase with the same start, for what outlives this one."""
        twin = OpenPhase(self.attempt, self.phase, self.start, self.server_address, self.server_port)
        twin.attributes.update(self.attributes)
        return twin

    def outcome(self, *, timer_fired: bool) -> tuple[str | None, bool]:
        """Return the error word, and whether it was cancelled instead.

        Args:
            timer_fired: A limit stands behind the cancellation that was seen.
        """
        exc = self.exc
        if exc is None:
            return None, False
        if isinstance(exc, (asyncio.CancelledError, GeneratorExit)):
            return (TIMED_OUT, False) if timer_fired else (None, True)
        return error_word(self.phase, exc, server_answered=self.server_answered), False

    def record(self, error_type: str | None, *, cancelled: bool, background: bool = False) -> PhaseRecord:
        """Return the frozen record of this phase, which has ended."""
        end = self.start if self.end is None else self.end
        return make_record(
            PhaseRecord,
            phase=self.phase,
            start_ns=self.attempt.wall(self.start),
            duration=(end - self.start) / 1e9,
            server_address=self.server_address,
            server_port=self.server_port,
            attributes=self.attributes,
            error_type=error_type,
            cancelled=cancelled,
            request_id=self.attempt.request_id,
            events=tuple(self.events),
            background=background,
            attempt=self.attempt,
        )

"""When the DNS lookup is timed.

Starts: when the connector asks for a name that is neither a literal nor cached.
Stops: with the answer, or with the end of waiting for it.
Seam: ``TCPConnector._resolve_host`` (aiohttp sends no signal on failure, and tells
waiters on somebody else's lookup that they had a cache hit before there is an answer).
Blind: what a caller's own resolver does inside.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Literal

from aiohttp_hardened.timing import _keys
from aiohttp_hardened.timing._host import normalise_host
from aiohttp_hardened.timing._phase import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp_hardened.timing._open_phase import OpenPhase
    from aiohttp_hardened.timing._request import Attempt

Source = Literal["lookup", "coalesced", "stale", "system"]


class Lookup:
    """One name asked for by one attempt; the resolver writes down where the answer came from.

    A lookup runs in aiohttp's own shielded task and may outlive the attempt that
    began it. It is then reported by itself, as a background record.

    Args:
        attempt: Who waits.
        host: The name as it is asked; a proxy's, when it is one that is connected to.
        port: Its port.
        coalesced: Somebody else's lookup is waited for.
    """

    def __init__(self, attempt: Attempt, host: str, port: int, *, coalesced: bool) -> None:
        self.source: Source = "coalesced" if coalesced else "lookup"
        self._attempt = attempt
        self._host = host
        self._phase: OpenPhase = attempt.enter(Phase.DNS, normalise_host(host), port)
        self._phase.attributes[_keys.DNS_QUESTION_NAME] = host
        self._waited_for = True
        self._cut = False

    def answered(self, addresses: Sequence[str]) -> None:
        """End the attempt's wait with the answer."""
        attributes = self._phase.attributes
        attributes[_keys.DNS_ANSWERS] = tuple(addresses)
        attributes[_keys.DNS_SOURCE] = self.source
        self._attempt.leave(self._phase)

    def failed(self, exc: BaseException) -> None:
        """End the attempt's wait without an answer.

        The source is only known of a lookup that ended by itself.
        """
        self._waited_for = False
        if not self._cut and not isinstance(exc, asyncio.CancelledError):
            self._phase.attributes[_keys.DNS_SOURCE] = self.source
        self._attempt.leave(self._phase, exc)

    def task_ended(self, exc: BaseException | None, addresses: Sequence[str] = ()) -> None:
        """Take note of the end of the shielded lookup; report it when nobody of ours waits any more.

        Args:
            exc: What it raised; ``CancelledError`` when the connector was closed under it.
            addresses: Its answer.
        """
        self._cut = isinstance(exc, asyncio.CancelledError)
        if self._waited_for and not self._cut:
            return
        phase = self._phase.twin()
        phase.attributes[_keys.DNS_SOURCE] = self.source
        if exc is None:
            phase.attributes[_keys.DNS_ANSWERS] = tuple(addresses)
        self._attempt.report_background(phase, exc)


current_lookup: Final[ContextVar[Lookup | None]] = ContextVar("aiohttp_hardened_lookup", default=None)

"""The last good answers, for the time when name servers fail (RFC 8767)."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS_TO_WAIT: Final = 1.8
"""RFC 8767, section 5: how long a client waits before it is given a stale answer."""
SECONDS_BETWEEN_RECHECKS: Final = 30.0
"""RFC 8767, section 5: after a failed refresh the name servers are left alone for this long."""
_MOST_NAMES: Final = 1000

Key = tuple[str, int]
Address = tuple[str, int]
"""An address and its family."""


class LastGoodAnswers:
    """Last good answers by name and family; used by one event loop."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Key, tuple[float, tuple[Address, ...]]] = OrderedDict()
        self._left_alone: dict[Key, float] = {}

    def keep(self, key: Key, addresses: Sequence[Address]) -> None:
        """Keep an answer that has just come."""
        self._answers[key] = (time.monotonic(), tuple(addresses))
        self._answers.move_to_end(key)
        self._left_alone.pop(key, None)
        if len(self._answers) > _MOST_NAMES:
            oldest, _ = self._answers.popitem(last=False)
            self._left_alone.pop(oldest, None)

    def forget(self, key: Key) -> None:
        """Drop an answer: the name servers say that there is no such name any more."""
        self._answers.pop(key, None)
        self._left_alone.pop(key, None)

    def get(self, key: Key, oldest: float) -> tuple[Address, ...] | None:
        """Return an answer that is at most ``oldest`` seconds old."""
        kept = self._answers.get(key)
        if kept is None or time.monotonic() - kept[0] > oldest:
            return None
        return kept[1]

    def refresh_failed(self, key: Key) -> None:
        """Leave the name servers alone about this name for a while."""
        self._left_alone[key] = time.monotonic() + SECONDS_BETWEEN_RECHECKS

    def is_left_alone(self, key: Key) -> bool:
        """Say whether a refresh failed lately."""
        until = self._left_alone.get(key)
        return until is not None and time.monotonic() < until

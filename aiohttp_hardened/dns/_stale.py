"""The last good answers, for the time when name servers fail (RFC 8767).

They belong to an event loop and are only touched on its thread. They outlive the
sessions, for a service may make one per request; two loops share none.
"""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SECONDS_TO_WAIT: Final = 1.8
"""RFC 8767, section 5, "client response timer": how long a client waits before it is given a stale answer."""
SECONDS_BETWEEN_RECHECKS: Final = 30.0
"""RFC 8767, section 5, "failure recheck timer": the name servers are left alone for this long."""
SECONDS_UNTIL_UNREACHABLE_IS_RECHECKED: Final = 1.0
"""An answer that leads nowhere is worth another query soon, but not one per request."""
MOST_NAMES: Final = 1000

FAMILIES: Final = (int(socket.AF_UNSPEC), int(socket.AF_INET), int(socket.AF_INET6))

Key = tuple[str, int]
"""A name as it is asked for, and a family."""
Address = tuple[str, int]
"""An address, with the zone of a link-local one, and its family."""


@dataclass(slots=True)
class _Answer:
    addresses: tuple[Address, ...]
    came: float
    left_alone_until: float = 0.0


class LastGoodAnswers:
    """Last good answers by name and family, the least lately used of too many dropped.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: OrderedDict[Key, _Answer] = OrderedDict()

    def keep(self, key: Key, addresses: Sequence[Address]) -> None:
        """Keep an answer that has just come; the name servers are well again."""
        self._answers[key] = _Answer(tuple(addresses), self._clock())
        self._answers.move_to_end(key)
        if len(self._answers) > MOST_NAMES:
            self._answers.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Drop an answer: the name servers say that there is none any more."""
        self._answers.pop(key, None)

    def get(self, key: Key, ttl: float) -> tuple[Address, ...] | None:
        """Return an answer.

        Args:
            key: What is asked.
            ttl: How old it may be, in seconds; 0: there is none.
        """
        answer = self._answers.get(key)
        if answer is None or self._clock() - answer.came >= ttl:
            return None
        self._answers.move_to_end(key)
        return answer.addresses

    def refresh_failed(self, key: Key) -> None:
        """Leave the name servers alone about this name for a while."""
        answer = self._answers.get(key)
        if answer is not None:
            answer.left_alone_until = self._clock() + SECONDS_BETWEEN_RECHECKS

    def is_unreachable(self, host: str) -> None:
        """Ask the name servers again soon, though a refresh failed lately: no address of the answer can be reached."""
        soon = self._clock() + SECONDS_UNTIL_UNREACHABLE_IS_RECHECKED
        for family in FAMILIES:
            answer = self._answers.get((host, family))
            if answer is not None:
                answer.left_alone_until = min(answer.left_alone_until, soon)

    def is_left_alone(self, key: Key) -> bool:
        """Say whether a refresh failed lately."""
        answer = self._answers.get(key)
        return answer is not None and self._clock() < answer.left_alone_until

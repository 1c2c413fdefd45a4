"""When the wait for a pooled connection is timed.

Starts: when the pool is full.
Stops: when a slot is free, or the wait is over.
Seam: ``BaseConnector._wait_for_available_connection`` (``queued_end`` is not sent on failure).
Blind: nothing known.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aiohttp_hardened.timing._phase import Phase

if TYPE_CHECKING:
    from collections.abc import Generator

    from aiohttp_hardened.timing._request import Attempt


@contextmanager
def timed_queue(attempt: Attempt) -> Generator[None]:
    """Time the wait for a free connection."""
    phase = attempt.enter(Phase.QUEUE)
    try:
        yield
    except BaseException as exc:
        attempt.leave(phase, exc)
        raise
    attempt.leave(phase)

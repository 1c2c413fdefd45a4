"""A lock that a forked child finds open, whoever held it in the parent."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

_locks: Final[weakref.WeakSet[ForkSafeLock]] = weakref.WeakSet()


class ForkSafeLock:
    """A ``threading.Lock`` for ``with``; another thread's hold on it does not survive ``fork``.

    What it protects must be right again by itself in the child: the thread that
    was half-way through a change there does not exist.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._lock.release()

    def reopen(self) -> None:
        """Forget who holds it."""
        self._lock = threading.Lock()


def _reopen_all() -> None:
    for lock in tuple(_locks):
        lock.reopen()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reopen_all)

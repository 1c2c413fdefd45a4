"""The system's resolver on threads of its own, never the default executor's."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from aiohttp_hardened.dns._errors import typed

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp_hardened.dns._stale import Address

MOST_THREADS: Final = 8
MOST_STUCK: Final = 56
"""Beside those: threads whose ``getaddrinfo`` nobody waits for any more."""
SECONDS_IDLE: Final = 1.0
_FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6})


class _Job:
    """One ``getaddrinfo``, for one that may leave before it is done."""

    def __init__(self, host: str, family: int, deliver: Callable[[list[Address], Exception | None], None]) -> None:
        self.host = host
        self.family = family
        self.deliver = deliver
        self.given_up = False

    def run(self) -> None:
        """Look the name up and deliver what came of it."""
        try:
            infos = socket.getaddrinfo(
                self.host, None, family=self.family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
        except Exception as exc:  # noqa: BLE001  (it is the caller's)
            self.deliver([], exc)
        else:
            self.deliver([(str(info[4][0]), int(info[0])) for info in infos if info[0] in _FAMILIES], None)


class Threads:
    """A few daemon threads that end when they have been idle for a moment.

    The threads of an executor are joined when the interpreter ends, and a stuck
    ``getaddrinfo`` would hold it for as long as the system likes. Nobody has to close
    these: the last one ends ``SECONDS_IDLE`` after the last lookup. A thread whose
    lookup was given up no longer counts, so that a few stuck names do not stop the
    others.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._running: set[_Job] = set()
        self._workers = 0
        self._idle = 0
        self._stuck = 0

    def submit(self, job: _Job) -> None:
        """Have a name looked up."""
        with self._changed:
            self._waiting.append(job)
            self._see_to_it()

    def give_up(self, job: _Job) -> None:
        """Let a job go that nobody waits for; its thread is replaced if it is stuck in it."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
            elif job in self._running and self._stuck < MOST_STUCK:
                job.given_up = True
                self._stuck += 1
                self._workers -= 1
                if self._waiting:
                    self._see_to_it()

    def _see_to_it(self) -> None:
        if self._idle >= len(self._waiting):
            self._changed.notify()
        elif self._workers < MOST_THREADS:
            self._workers += 1
            threading.Thread(target=self._work, name="aiohttp_hardened getaddrinfo", daemon=True).start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            with self._changed:
                self._running.discard(job)
                if job.given_up:
                    self._stuck -= 1
                    return
            del job  # with it its caller's frames, while this thread waits for the next one

    def _next(self) -> _Job | None:
        with self._changed:
            if not self._waiting:
                self._idle += 1
                self._changed.wait_for(lambda: self._waiting, SECONDS_IDLE)
                self._idle -= 1
            if not self._waiting:
                self._workers -= 1
                return None
            job = self._waiting.popleft()
            self._running.add(job)
            return job


_threads = Threads()


def _start_anew() -> None:
    """Forget threads that a forked child does not have, and a lock that they may hold."""
    global _threads  # noqa: PLW0603  (all of a process share it)
    _threads = Threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


async def ask_system(host: str, family: int) -> list[Address]:
    """Ask ``getaddrinfo``, which knows what NSS knows.

    Args:
        host: The name.
        family: ``socket.AF_UNSPEC``, ``AF_INET`` or ``AF_INET6``.

    Raises:
        DNSLookupError: There is no address.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Address]] = loop.create_future()

    def settle(addresses: list[Address], exc: Exception | None) -> None:
        if answer.done():
            return
        if exc is not None:
            answer.set_exception(exc)
        else:
            answer.set_result(addresses)

    def deliver(addresses: list[Address], exc: Exception | None) -> None:
        if loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(settle, addresses, exc)
        except RuntimeError:
            # Closed at this very moment: nobody waits any more.
            return

    job = _Job(host, family, deliver)
    _threads.submit(job)
    try:
        return await answer
    except asyncio.CancelledError:
        _threads.give_up(job)
        raise
    except (OSError, UnicodeError) as exc:
        raise typed(exc) from exc

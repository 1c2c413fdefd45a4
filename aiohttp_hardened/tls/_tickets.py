"""The ticket store: one unused ticket per finished connection, and never one for somebody else.

OpenSSL does not check the host name on a resumed handshake: a session from ``x.test``
that is offered under ``evil.test`` is accepted. What prevents it is the key under which
a ticket is kept: the generation of the context, the name that was verified, and the
route (port, proxy, pin).

Under TLS 1.3 a ticket is used once (RFC 8446, appendix C.4: reuse lets an observer link
connections; OpenSSL does not enforce it), the newest first. Under TLS 1.2 one session
serves many connections.
"""

from __future__ import annotations

import os
import sys
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiohttp_hardened.tls._locks import ForkSafeLock

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from aiohttp_hardened.tls._context import Generation

Key = tuple["Generation", "str | None", tuple[Any, ...]]
"""The generation of the context, the name that is verified, and ``Attempt.tls_route``."""

MOST_SESSIONS: Final = 1024
MOST_PER_KEY: Final = 256

SECONDS_OF_QUIET: Final = 60.0
"""How long a peer that sends no tickets, or refuses them, is left alone: a read costs 0.2 ms, and so does an offer."""
REFUSALS_TO_QUIET: Final = 3
"""A peer that forgot its keys refuses many tickets, but not three that it issued one after the other."""
SECONDS_TO_ANSWER: Final = 10.0
"""Twice the default budget of a handshake: after that an offer counts as one that broke the connection."""

READING_LEAKS: Final = sys.version_info < (3, 12, 8) or (3, 13) <= sys.version_info < (3, 13, 1)
"""Whether each read of ``.session`` leaks a copy of it (python/cpython#116810, since 3.10)."""
MOST_LEAKING_READS: Final = 4096
"""Where reading leaks, a process reads this often and then lives on what is in store. Measured at 5.8 kB (RSA-2048)
to 6.6 kB (ECDSA P-256) each on 3.11.7, 3.12.1 and 3.13.0: 27 MB in all, a few percent of what a service has."""


class Ticket(NamedTuple):
    """A session that may be offered.

    Args:
        session: What ``SSLObject.session`` gave.
        born: When it was kept, monotonic seconds.
        expires: When it must not be offered any more, monotonic seconds.
        reusable: TLS 1.2: one session for many connections.
    """

    session: ssl.SSLSession
    born: float
    expires: float
    reusable: bool


class _Shelf:
    """The tickets of one key, the newest last, and what is known of the peer."""

    __slots__ = ("asked", "asked_since", "quiet_until", "refusals", "refused_at", "tickets")

    def __init__(self) -> None:
        self.tickets: deque[Ticket] = deque()
        self.quiet_until = 0.0
        self.refusals = 0
        self.refused_at = 0.0
        self.asked = 0
        self.asked_since = 0.0


class TicketStore:
    """Tickets by key; bounded, and safe to use from any thread.

    Args:
        most: Tickets in all, and keys that something is known of.
        most_per_key: Tickets of one key.
        most_reads: Reads of ``.session`` in this process; ``None``: no limit.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        most: int = MOST_SESSIONS,
        most_per_key: int = MOST_PER_KEY,
        most_reads: int | None = MOST_LEAKING_READS if READING_LEAKS else None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._most = most
        self._most_per_key = most_per_key
        self._most_reads = most_reads
        self._lock = ForkSafeLock()
        self.forget_all()

    def forget_all(self) -> None:
        """Drop everything: what a forked child inherits is its parent's to use."""
        self._shelves: OrderedDict[Key, _Shelf] = OrderedDict()
        self._count = 0
        self._some_retired = False
        self.reads = 0
        """Reads of ``.session`` so far."""

    def __len__(self) -> int:
        """Return how many tickets are held."""
        return self._count

    def take(self, key: Key) -> Ticket | None:
        """Return the newest ticket of exactly this key; one of TLS 1.3 is gone from the store then."""
        now = self._clock()
        with self._lock:
            self._drop_retired()
            shelf = self._shelves.get(key)
            if shelf is None or not shelf.tickets or now < shelf.quiet_until or key[0].retired:
                return None
            self._shelves.move_to_end(key)
            if shelf.asked >= REFUSALS_TO_QUIET and now - shelf.asked_since > SECONDS_TO_ANSWER:
                self._quiet(shelf, now)
                return None
            while shelf.tickets:
                ticket = shelf.tickets[-1]
                if ticket.expires > now and ticket.reusable:
                    return self._asked(shelf, ticket, now)
                shelf.tickets.pop()
                self._count -= 1
                if ticket.expires > now:
                    return self._asked(shelf, ticket, now)
        return None

    def answered(self, key: Key, ticket: Ticket, *, resumed: bool) -> None:
        """Take note of what a peer made of a ticket."""
        now = self._clock()
        with self._lock:
            shelf = self._shelves.get(key)
            if shelf is None:
                return
            shelf.asked = 0
            if resumed:
                shelf.refusals = 0
                return
            if ticket in shelf.tickets:
                shelf.tickets.remove(ticket)
                self._count -= 1
            # After a change of keys the old tickets are refused together; that is one refusal.
            if ticket.born > shelf.refused_at:
                self._refused(shelf, now)

    def broke(self, key: Key) -> None:
        """Take note that a handshake failed to which a ticket had been offered."""
        with self._lock:
            shelf = self._shelves.get(key)
            if shelf is not None:
                shelf.asked = 0
                self._clear(shelf)
                self._refused(shelf, self._clock())

    def wanted(self, key: Key, *, reusable: bool) -> bool:
        """Say whether a connection's session should be read, and count the read.

        Args:
            key: Whom the session would be for.
            reusable: TLS 1.2, where one session is enough.
        """
        if key[0].retired or (self._most_reads is not None and self.reads >= self._most_reads):
            return False
        with self._lock:
            shelf = self._shelves.get(key)
            if shelf is not None and (self._clock() < shelf.quiet_until or (reusable and shelf.tickets)):
                return False
            self.reads += 1
            return True

    def put(self, key: Key, session: ssl.SSLSession, seconds: float, *, reusable: bool) -> None:
        """Keep a ticket; the oldest one makes room.

        Args:
            key: For whom alone it may be used.
            session: What ``SSLObject.session`` gave.
            seconds: How long it may be used.
            reusable: TLS 1.2; it replaces the one before.
        """
        now = self._clock()
        if seconds <= 0:
            return
        with self._lock:
            self._drop_retired()
            if key[0].retired:
                return
            shelf = self._shelf(key)
            if reusable:
                self._clear(shelf)
            elif len(shelf.tickets) >= self._most_per_key:
                shelf.tickets.popleft()
                self._count -= 1
            shelf.tickets.append(Ticket(session, now, now + seconds, reusable))
            self._count += 1
            self._make_room()

    def sent_none(self, key: Key) -> None:
        """Take note that a peer sent no ticket."""
        with self._lock:
            self._quiet(self._shelf(key), self._clock())
            self._make_room()

    def drop_retired(self) -> None:
        """Drop the tickets of retired generations."""
        self._some_retired = True
        with self._lock:
            self._drop_retired()

    def drop_retired_later(self) -> None:
        """Drop them when the store is used next: for finalizers, which may run while this very thread has the lock."""
        self._some_retired = True

    # -- with the lock held

    def _drop_retired(self) -> None:
        if self._some_retired:
            self._some_retired = False
            for key in [each for each in self._shelves if each[0].retired]:
                self._count -= len(self._shelves.pop(key).tickets)

    def _shelf(self, key: Key) -> _Shelf:
        shelf = self._shelves.setdefault(key, _Shelf())
        self._shelves.move_to_end(key)
        return shelf

    def _asked(self, shelf: _Shelf, ticket: Ticket, now: float) -> Ticket:
        if not shelf.asked:
            shelf.asked_since = now
        shelf.asked += 1
        return ticket

    def _refused(self, shelf: _Shelf, now: float) -> None:
        shelf.refusals += 1
        shelf.refused_at = now
        if shelf.refusals >= REFUSALS_TO_QUIET:
            self._quiet(shelf, now)

    def _quiet(self, shelf: _Shelf, now: float) -> None:
        self._clear(shelf)
        shelf.refusals = shelf.asked = 0
        shelf.quiet_until = now + SECONDS_OF_QUIET

    def _clear(self, shelf: _Shelf) -> None:
        self._count -= len(shelf.tickets)
        shelf.tickets.clear()

    def _make_room(self) -> None:
        while self._count > self._most or len(self._shelves) > self._most:
            key, shelf = next(iter(self._shelves.items()))
            if shelf.tickets:
                shelf.tickets.popleft()
                self._count -= 1
            if not shelf.tickets:
                del self._shelves[key]


tickets: Final = TicketStore()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=tickets.forget_all)

"""The ticket store, and the SSL object that offers and keeps tickets.

OpenSSL does not check the host name on a resumed handshake: a session from ``x.test``
that is offered under ``evil.test`` is accepted. What prevents it is the key under which
a ticket is kept: the context with its generation, the name that was verified, and the
route (port, proxy, pin).

Under TLS 1.3 a ticket comes after the handshake and is used once (RFC 8446, appendix
C.4: reuse lets an observer link connections); under TLS 1.2 one session serves many.
Reading or setting ``SSLObject.session`` makes CPython before 3.12.6 serialise the
session, about 0.2 ms, and reading leaks it (python/cpython#116810).
"""

from __future__ import annotations

import os
import ssl
import sys
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiohttp_hardened.timing._current import current_attempt
from aiohttp_hardened.timing._tls import TimedSSLObject

if TYPE_CHECKING:
    from collections.abc import Hashable

    from typing_extensions import Buffer

    from aiohttp_hardened.tls._context import SharedSSLContext

MOST_SESSIONS: Final = 1024
MOST_PER_KEY: Final = 256
LONGEST_LIFETIME: Final = 7 * 24 * 3600.0
"""RFC 8446, section 4.6.1: a ticket must not be used longer than seven days."""
SECONDS_WITHOUT_TICKETS: Final = 60.0
"""How long a peer that sent no ticket is not asked for one, since asking costs 0.2 ms."""

READING_LEAKS: Final = sys.version_info < (3, 12, 6) or (3, 13, 0) <= sys.version_info < (3, 13, 1)
"""python/cpython#116810, seen on 3.11.7, 3.12.1 and 3.13.0: each read of ``.session`` keeps the session for ever."""
MOST_LEAKING_READS: Final = 2000
"""Where reading leaks: sessions are read this often per process, then resumption ends with what is in store."""


class _Ticket(NamedTuple):
    session: ssl.SSLSession
    expires: float
    reusable: bool


class TicketStore:
    """Tickets by key, newest first; bounded and safe to use from any thread."""

    def __init__(self, most: int = MOST_SESSIONS, most_per_key: int = MOST_PER_KEY) -> None:
        self._most = most
        self._most_per_key = most_per_key
        self.forget_all()

    def forget_all(self) -> None:
        """Drop everything, and the lock with it: a forked child may have inherited it locked."""
        self._lock = threading.Lock()
        self._tickets: OrderedDict[Hashable, deque[_Ticket]] = OrderedDict()
        self._without: dict[Hashable, float] = {}
        self._count = 0
        self.reads = 0

    def __len__(self) -> int:
        """Return how many sessions are held."""
        return self._count

    def take(self, key: Hashable) -> ssl.SSLSession | None:
        """Return the newest ticket for exactly this key; one of TLS 1.3 is gone from the store then."""
        now = time.monotonic()
        with self._lock:
            held = self._tickets.get(key)
            while held:
                ticket = held[-1]
                if ticket.expires > now and ticket.reusable:
                    self._tickets.move_to_end(key)
                    return ticket.session
                held.pop()
                self._count -= 1
                if not held:
                    del self._tickets[key]
                if ticket.expires > now:
                    return ticket.session
        return None

    def put(self, key: Hashable, session: ssl.SSLSession, seconds: float, *, reusable: bool) -> None:
        """Keep a ticket; the oldest one makes room.

        Args:
            key: For whom alone it may be used.
            session: What ``SSLObject.session`` gave.
            seconds: How long it may be used.
            reusable: TLS 1.2: one session for many connections; it replaces the one before.
        """
        if seconds <= 0:
            return
        with self._lock:
            self._without.pop(key, None)
            held = self._tickets.setdefault(key, deque())
            if reusable:
                self._count -= len(held)
                held.clear()
            elif len(held) >= self._most_per_key:
                held.popleft()
                self._count -= 1
            held.append(_Ticket(session, time.monotonic() + seconds, reusable))
            self._count += 1
            self._tickets.move_to_end(key)
            while self._count > self._most:
                oldest_key, oldest = next(iter(self._tickets.items()))
                oldest.popleft()
                self._count -= 1
                if not oldest:
                    del self._tickets[oldest_key]

    def drop(self, number: int) -> None:
        """Drop every ticket of one context."""
        with self._lock:
            for key in [each for each in self._tickets if each[0] == number]:  # type: ignore[index]
                self._count -= len(self._tickets.pop(key))
            for key in [each for each in self._without if each[0] == number]:  # type: ignore[index]
                del self._without[key]

    def worth_reading(self, key: Hashable) -> bool:
        """Say whether a connection's session should be read: it costs, and on old Pythons it leaks."""
        if READING_LEAKS and self.reads >= MOST_LEAKING_READS:
            return False
        until = self._without.get(key)
        if until is not None and time.monotonic() < until:
            return False
        self.reads += 1
        return True

    def note_no_ticket(self, key: Hashable) -> None:
        """Remember that a peer sends no tickets."""
        with self._lock:
            if len(self._without) >= self._most:
                self._without.clear()
            self._without[key] = time.monotonic() + SECONDS_WITHOUT_TICKETS


tickets: Final = TicketStore()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=tickets.forget_all)


class SharedSSLObject(TimedSSLObject):
    """The SSL object of a shared context: timed, resumed where it may be, and without a way to the context behind."""

    _facade: SharedSSLContext | None = None
    _generation = 0

    def bind(self, facade: SharedSSLContext, generation: int) -> None:
        """Say which shared context it was made with."""
        self._facade = facade
        self._generation = generation

    @property
    def context(self) -> ssl.SSLContext:
        """The shared context; it cannot be changed through here either."""
        return self._facade if self._facade is not None else super().context

    @context.setter
    def context(self, _: ssl.SSLContext) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise AttributeError("the context of a connection made with a shared SSL context cannot be replaced")


class ResumingSSLObject(SharedSSLObject):
    """A client's SSL object that offers a ticket of its own key and keeps the one it gets."""

    _key: tuple[Any, ...] | None = None
    _offered = False

    def read(self, len: int = 1024, buffer: Buffer | None = None) -> Any:  # noqa: A002  (ssl's signature)
        """Read as ``ssl.SSLObject`` does; the first data is behind the ticket."""
        data = super().read(len, buffer)
        if self._key is not None:
            self._keep_ticket()
        return data

    def do_handshake(self) -> None:
        """Go on with the handshake; before its first step a ticket is offered."""
        if not self._offered:
            self._offered = True
            self._offer_ticket()
        super().do_handshake()
        # Of TLS 1.3 a ticket can only come with the first data that is read.
        if self._key is not None and self.version() != "TLSv1.3":
            self._keep_session()

    def _offer_ticket(self) -> None:
        attempt = current_attempt.get()
        if attempt is None or attempt.tls_route is None or self._facade is None or self.server_side:
            return
        key = (self._facade.number, self._generation, self.server_hostname, attempt.tls_route)
        self._key = key
        session = tickets.take(key)
        if session is not None:
            try:
                self.session = session
            except ValueError:
                # "Session refers to a different SSLContext": it is out of the store, and nothing is lost.
                return

    def _keep_session(self) -> None:
        key, self._key = self._key, None
        if key is None or self.session_reused or not tickets.worth_reading(key):
            return
        session = self.session
        if session is not None and (session.has_ticket or session.id):
            tickets.put(key, session, self._lifetime(session), reusable=True)

    def _keep_ticket(self) -> None:
        key, self._key = self._key, None
        facade = self._facade
        if key is None or facade is None or facade.generation != self._generation or not tickets.worth_reading(key):
            return
        session = self.session
        if session is None or not session.has_ticket:
            tickets.note_no_ticket(key)
            return
        tickets.put(key, session, self._lifetime(session), reusable=False)

    def _lifetime(self, session: ssl.SSLSession) -> float:
        """Return min(the server's hint, seven days, the certificate's end), in seconds."""
        seconds = float(session.ticket_lifetime_hint or session.timeout)
        not_after = (self.getpeercert() or {}).get("notAfter")
        if isinstance(not_after, str):
            seconds = min(seconds, ssl.cert_time_to_seconds(not_after) - time.time())
        return min(seconds, LONGEST_LIFETIME)

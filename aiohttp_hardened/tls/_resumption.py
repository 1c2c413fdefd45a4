"""The SSL objects of a client: timed, and resumed where the route is known.

When a ticket is offered: before the first step of the handshake, inside the timed phase.
When one is kept: after the first application data that is read. Under TLS 1.3 it comes
behind the handshake (RFC 8446, section 4.6.1), and a connection whose pin did not match
or whose client certificate was refused never gets that far.

Before CPython 3.12.8 and 3.13.1 reading and setting ``SSLObject.session`` each copy the
session, 0.15-0.25 ms. Nearly all of it is OpenSSL 3 parsing the peer's certificate again
(``d2i_X509``); the copy itself is 1 kB and 3 µs. There is no way around it in ``ssl``,
only fewer reads and offers; later Pythons share the session for about 1 µs.
"""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Any, Final

from aiohttp_hardened.timing._current import current_attempt
from aiohttp_hardened.timing._tls import TimedSSLObject
from aiohttp_hardened.tls._context import SharedSSLObject
from aiohttp_hardened.tls._tickets import tickets
from aiohttp_hardened.tls._x509 import parse

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from aiohttp_hardened.tls._tickets import Key, Ticket

LONGEST_LIFETIME: Final = 7 * 24 * 3600.0
"""RFC 8446, section 4.6.1: a ticket must not be used longer than seven days."""


class TimedSharedSSLObject(TimedSSLObject, SharedSSLObject):
    """A client's SSL object without resumption."""


class _ResumableSSLObject(SharedSSLObject):
    _key: Key | None = None
    _ticket: Ticket | None = None
    _begun = False

    def do_handshake(self) -> None:
        """Go on with the handshake; before its first step a ticket is offered."""
        if not self._begun:
            self._begun = True
            self._offer()
        ticket, key = self._ticket, self._key
        if ticket is None or key is None:
            super().do_handshake()
            return
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except BaseException:
            self._ticket = self._key = None
            tickets.broke(key)
            raise
        self._ticket = None
        tickets.answered(key, ticket, resumed=bool(self.session_reused))

    def read(self, len: int = 1024, buffer: WriteableBuffer | None = None) -> Any:  # noqa: A002  # ssl's signature
        """Read as ``ssl.SSLObject`` does; a ticket is kept with the first data.

        On the class: uvloop keeps the bound method.
        """
        data = super().read(len, buffer)
        if self._key is not None and data:
            self._keep()
        return data

    def _offer(self) -> None:
        attempt = current_attempt.get()
        if attempt is None or attempt.tls_route is None or self.generation is None or self.server_side:
            return
        key = self._key = (self.generation, self.server_hostname, attempt.tls_route)
        ticket = tickets.take(key)
        if ticket is None:
            return
        try:
            self.session = ticket.session
        except (ValueError, ssl.SSLError):
            # "Session refers to a different SSLContext": it is out of the store, and the handshake is a full one.
            tickets.broke(key)
        else:
            self._ticket = ticket

    def _keep(self) -> None:
        key, self._key = self._key, None
        reusable = self.version() != "TLSv1.3"
        if key is None or not tickets.wanted(key, reusable=reusable):
            return
        session = self.session
        if session is None or not (session.has_ticket or (reusable and session.id)):
            tickets.sent_none(key)
            return
        tickets.put(key, session, self._lifetime(session, reusable=reusable), reusable=reusable)

    def _lifetime(self, session: ssl.SSLSession, *, reusable: bool) -> float:
        """Return min(the server's hint, seven days, the certificate's end), in seconds."""
        hint = session.ticket_lifetime_hint if session.has_ticket else session.timeout
        if reusable and not hint:
            # RFC 5077, section 3.3: 0 leaves it to the client. Under TLS 1.3 it means at once.
            hint = session.timeout
        certificate = self.getpeercert(binary_form=True)
        if certificate is None:
            return 0.0
        return min(float(hint), LONGEST_LIFETIME, parse(certificate).not_after - time.time())


class ResumingSSLObject(TimedSSLObject, _ResumableSSLObject):
    """A client's SSL object that offers a ticket of exactly its own key, and keeps the one it gets."""

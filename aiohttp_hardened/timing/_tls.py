"""When the TLS handshake is timed.

Starts: at the first ``do_handshake`` of an SSL object.
Stops: at the ``do_handshake`` that returns, or raises anything but want-read / want-write.
Seam: ``ssl.SSLContext.sslobject_class``, used by asyncio, uvloop and ``start_tls`` alike.
Blind: transports that do not call ``wrap_bio`` (aiofastnet), and contexts with an
``sslobject_class`` of their own; those report one unsplit connect.
"""

from __future__ import annotations

import ssl
import sys
import threading
import weakref
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from aiohttp_hardened.timing import _keys
from aiohttp_hardened.timing._current import current_attempt
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.timing._host import normalise_host
from aiohttp_hardened.timing._phase import Phase

if TYPE_CHECKING:
    from aiohttp_hardened.timing._open_phase import OpenPhase
    from aiohttp_hardened.timing._request import Attempt


class TimedSSLObject(ssl.SSLObject):
    """An SSL object that reports its handshake to the attempt it is made for.

    Outside an attempt it is an ``ssl.SSLObject``.
    """

    # A caller's own context makes these, and shows the class: it looks as it did.
    __module__ = ssl.SSLObject.__module__
    __qualname__ = ssl.SSLObject.__qualname__

    _phase: OpenPhase | None = None
    _handshaking = True

    def do_handshake(self) -> None:
        """Go on with the handshake; the first call starts the phase, the last ends it."""
        if not self._handshaking:
            super().do_handshake()
            return
        if self._phase is None:
            attempt = current_attempt.get()
            if attempt is not None:
                self._phase = _start(attempt, self)
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except BaseException:
            self._leave(established=False)
            raise
        self._leave(established=True)

    def _leave(self, *, established: bool) -> None:
        self._handshaking = False
        phase, self._phase = self._phase, None
        if phase is not None:
            _end(phase, self, established=established)


_split: Final[weakref.WeakSet[ssl.SSLContext]] = weakref.WeakSet()
_lock: Final = threading.Lock()


def split_handshakes(context: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Let the handshakes of a caller's own context be timed, where that has a public seam; return the context."""
    if context is not None and context.sslobject_class is ssl.SSLObject:
        context.sslobject_class = TimedSSLObject
        with _lock:
            _split.add(context)
    return context


def unsplit_handshakes() -> None:
    """Give every context that was split its own class again; the next connection that needs it splits it again."""
    with _lock:
        contexts = tuple(_split)
        _split.clear()
    for context in contexts:
        if vars(context).get("sslobject_class") is TimedSSLObject:
            del context.sslobject_class


def _start(attempt: Attempt, ssl_object: ssl.SSLObject) -> OpenPhase:
    name = ssl_object.server_hostname
    address = attempt.server_address if name is None else normalise_host(name)
    phase = attempt.enter(Phase.TLS, address, attempt.tls_port)
    phase.attributes[_keys.TLS_ESTABLISHED] = False
    attempt.move_deadline(attempt.budgets.tls)
    return phase


def _end(phase: OpenPhase, ssl_object: ssl.SSLObject, *, established: bool) -> None:
    phase.attempt.leave(phase, None if established else sys.exc_info()[1])
    cipher = ssl_object.cipher()
    phase.server_answered = cipher is not None
    if not established or not phase.attempt.hooks:
        return
    attributes = phase.attributes
    attributes[_keys.TLS_ESTABLISHED] = True
    attributes[_keys.TLS_PROTOCOL_NAME] = "tls"
    version = ssl_object.version()
    if version is not None:
        attributes[_keys.TLS_PROTOCOL_VERSION] = version.removeprefix("TLSv")
    if cipher is not None:
        attributes[_keys.TLS_CIPHER] = cipher[0]
    attributes[_keys.TLS_RESUMED] = bool(ssl_object.session_reused)
    not_after = (ssl_object.getpeercert() or {}).get("notAfter")
    if isinstance(not_after, str):
        ends = ssl.cert_time_to_seconds(not_after)
        attributes[_keys.TLS_SERVER_NOT_AFTER] = datetime.fromtimestamp(ends, UTC).isoformat().replace("+00:00", "Z")
        figures.show_peer_not_after(phase.server_address, ends)

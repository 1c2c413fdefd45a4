"""When the TLS handshake is timed.

Starts: at the first ``do_handshake`` of an SSL object.
Stops: at the ``do_handshake`` that returns, or raises anything but want-read / want-write.
Seam: ``ssl.SSLContext.sslobject_class``, used by asyncio, uvloop and ``start_tls`` alike.
Blind: transports that do not call ``wrap_bio`` (aiofastnet), and contexts with an
``sslobject_class`` of their own; those report one unsplit connect.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from aiohttp_hardened.timing._current import current_attempt

if TYPE_CHECKING:
    from aiohttp_hardened.timing._request import OpenPhase


class TimedSSLObject(ssl.SSLObject):
    """An SSL object that reports its handshake to the attempt it is made for.

    Outside an attempt it is an ``ssl.SSLObject``.
    """

    _phase: OpenPhase | None = None
    _handshaking = True

    def do_handshake(self) -> None:
        """Go on with the handshake; the first call starts the phase, the last ends it."""
        if not self._handshaking:
            super().do_handshake()
            return
        phase = self._phase
        if phase is None:
            attempt = current_attempt.get()
            if attempt is not None:
                phase = self._phase = attempt.start_tls(self)
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except BaseException:
            self._leave(phase, established=False)
            raise
        self._leave(phase, established=True)

    def _leave(self, phase: OpenPhase | None, *, established: bool) -> None:
        self._handshaking = False
        self._phase = None
        if phase is not None:
            phase.attempt.end_tls(phase, self, established=established)

"""A resolver's failure, and the system's, as words of the closed list."""

from __future__ import annotations

import socket
from typing import Final

from aiohttp_hardened.exceptions import DNSLookupError

HOST_NOT_FOUND: Final = "host_not_found"
NO_DATA: Final = "no_data"
SERVER_FAILURE: Final = "server_failure"
REFUSED: Final = "refused"
MALFORMED_NAME: Final = "malformed_name"
TIMED_OUT: Final = "timed_out"

# c-ares' ares.h. Not taken from aiodns, which may be missing. Whatever is not here says
# nothing of the name (an unreachable server, an answer that cannot be parsed, no memory).
_ARES: Final = {1: NO_DATA, 4: HOST_NOT_FOUND, 6: REFUSED, 8: MALFORMED_NAME, 12: TIMED_OUT, 17: MALFORMED_NAME}
_ARES_CUT: Final = frozenset({16, 24})
"""``ARES_EDESTRUCTION`` and ``ARES_ECANCELLED``: somebody closed the channel."""

# glibc answers EAI_AGAIN for a timeout, for SERVFAIL and for an unreachable server alike.
_SYSTEM: Final = {
    getattr(socket, name): word
    for name, word in (("EAI_NONAME", HOST_NOT_FOUND), ("EAI_NODATA", NO_DATA), ("EAI_ADDRFAMILY", NO_DATA))
    if hasattr(socket, name)
}


def lookup_word(exc: BaseException) -> str | None:
    """Return the word for what a lookup raised.

    Args:
        exc: As ``aiohttp.AsyncResolver``, ``getaddrinfo``, or a resolver of ours or of
            a caller's own raised it.

    Returns:
        The word; ``None`` when the failure says nothing of the name or its servers.
    """
    if isinstance(exc, DNSLookupError):
        return exc.reason
    if isinstance(exc, UnicodeError):
        # The codec that turns a name into A-labels refuses empty and overlong labels.
        return MALFORMED_NAME
    if not isinstance(exc, OSError) or was_cut(exc):
        return None
    if isinstance(exc, socket.gaierror):
        return _SYSTEM.get(exc.errno or 0, SERVER_FAILURE)
    if isinstance(exc, TimeoutError):
        return TIMED_OUT
    return _ARES.get(_ares_status(exc), SERVER_FAILURE)


def was_cut(exc: OSError) -> bool:
    """Say whether a lookup ended because its channel was closed."""
    return _ares_status(exc) in _ARES_CUT


def _ares_status(exc: OSError) -> int:
    """Return the status in the ``aiodns.error.DNSError`` from which aiohttp raises; 0: there is none."""
    cause = exc.__cause__
    if cause is None or type(cause).__name__ != "DNSError" or not cause.args:
        return 0
    status = cause.args[0]
    return status if isinstance(status, int) else 0

"""The resolver's status and the system's, as words of the closed list."""

from __future__ import annotations

import socket
from typing import Final

from aiodns import error as ares

from aiohttp_hardened.exceptions import DNSLookupError

HOST_NOT_FOUND: Final = "host_not_found"
NO_DATA: Final = "no_data"
SERVER_FAILURE: Final = "server_failure"
REFUSED: Final = "refused"
MALFORMED_NAME: Final = "malformed_name"
TIMED_OUT: Final = "timed_out"

NAME_SERVERS_FAIL: Final = frozenset({SERVER_FAILURE, REFUSED, TIMED_OUT})
"""What a stale answer is served for; never for what the name servers say of the name."""

_ARES: Final[dict[int, str]] = {
    ares.ARES_ENODATA: NO_DATA,
    ares.ARES_ENOTFOUND: HOST_NOT_FOUND,
    ares.ARES_EREFUSED: REFUSED,
    ares.ARES_EBADNAME: MALFORMED_NAME,
    ares.ARES_ETIMEOUT: TIMED_OUT,
}
_SYSTEM: Final[dict[int, str]] = {
    getattr(socket, name): word
    for name, word in (
        ("EAI_NONAME", HOST_NOT_FOUND),
        ("EAI_NODATA", NO_DATA),
        ("EAI_ADDRFAMILY", NO_DATA),
    )
    if hasattr(socket, name)
}

_MOST_TELLING: Final = (HOST_NOT_FOUND, MALFORMED_NAME, TIMED_OUT, SERVER_FAILURE, REFUSED, NO_DATA)


def typed(exc: OSError) -> DNSLookupError:
    """Return a resolver's failure with its reason; whatever says nothing of the name is a server's failure."""
    if isinstance(exc, DNSLookupError):
        return exc
    message = exc.strerror or str(exc) or "DNS lookup failed"
    if isinstance(exc, socket.gaierror):
        reason = _SYSTEM.get(exc.errno or 0, SERVER_FAILURE)
    elif isinstance(exc.__cause__, ares.DNSError):
        status = exc.__cause__.args[0] if exc.__cause__.args else None
        reason = _ARES.get(status, SERVER_FAILURE)
    else:
        reason = SERVER_FAILURE
    made = DNSLookupError(message, reason=reason)
    made.__cause__ = exc
    return made


def more_telling(one: DNSLookupError, other: DNSLookupError) -> DNSLookupError:
    """Return which of the failures of A and AAAA says more of the name."""
    return min(one, other, key=lambda each: _MOST_TELLING.index(each.reason))

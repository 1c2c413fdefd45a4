"""A resolver's status and the system's, as words of the closed list."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

import aiohttp

from aiohttp_hardened.exceptions import DNSLookupError

if TYPE_CHECKING:
    from collections.abc import Iterable

HOST_NOT_FOUND: Final = "host_not_found"
NO_DATA: Final = "no_data"
SERVER_FAILURE: Final = "server_failure"
REFUSED: Final = "refused"
MALFORMED_NAME: Final = "malformed_name"
TIMED_OUT: Final = "timed_out"

NAME_SERVERS_FAIL: Final = frozenset({SERVER_FAILURE, REFUSED, TIMED_OUT})
"""What a stale answer is served for; never for what the name servers say of the name."""

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

_MOST_TELLING: Final = (HOST_NOT_FOUND, MALFORMED_NAME, SERVER_FAILURE, REFUSED, TIMED_OUT, NO_DATA)


def closed() -> aiohttp.ClientConnectionError:
    """Return what a lookup ends with whose resolver is closed."""
    return aiohttp.ClientConnectionError("Connector is closed: its resolver answers no more.")


def typed(exc: Exception) -> Exception:
    """Return what a resolver's failure is for the caller, with the failure as its cause.

    Args:
        exc: As ``aiohttp.AsyncResolver``, ``getaddrinfo`` or a caller's own resolver
            raised it.

    Returns:
        A ``DNSLookupError``; a ``ClientConnectionError`` when the resolver was closed
        under the lookup; else the exception itself.
    """
    made = _typed(exc)
    if made is not exc:
        made.__cause__ = exc
    return made


def _typed(exc: Exception) -> Exception:
    if isinstance(exc, UnicodeError):
        # The codec that turns a name into A-labels refuses empty and overlong labels.
        return DNSLookupError(f"not a name: {exc}", reason=MALFORMED_NAME)
    if isinstance(exc, AttributeError):
        # A closed ``aiohttp.AsyncResolver`` asks ``None`` for the answer.
        return closed() if exc.obj is None else exc
    if not isinstance(exc, OSError) or isinstance(exc, (DNSLookupError, aiohttp.ClientError)):
        return exc
    status = _ares_status(exc)
    if status in _ARES_CUT:
        return closed()
    if isinstance(exc, socket.gaierror):
        reason = _SYSTEM.get(exc.errno, SERVER_FAILURE)
    elif isinstance(exc, TimeoutError):
        reason = TIMED_OUT
    else:
        reason = _ARES.get(status, SERVER_FAILURE)
    return DNSLookupError(exc.strerror or str(exc) or "DNS lookup failed", reason=reason)


def _ares_status(exc: OSError) -> int:
    """Return the status in the ``aiodns.error.DNSError`` from which aiohttp raises; 0: there is none."""
    cause = exc.__cause__
    if cause is None or type(cause).__name__ != "DNSError" or not cause.args:
        return 0
    status = cause.args[0]
    return status if isinstance(status, int) else 0


def most_telling(failures: Iterable[Exception]) -> Exception:
    """Return the failure that says most of a name, of those for A and for AAAA.

    "No such name" is said of all types at once (RFC 8020); "no data" is only the
    truth when nobody says anything else.
    """
    return min(failures, key=_rank)


def _rank(exc: Exception) -> int:
    return _MOST_TELLING.index(exc.reason) if isinstance(exc, DNSLookupError) else -1

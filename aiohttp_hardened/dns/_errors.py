"""What a resolver's failure is for the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp

from aiohttp_hardened.exceptions import DNSLookupError
from aiohttp_hardened.timing._lookup_words import (
    HOST_NOT_FOUND,
    MALFORMED_NAME,
    NO_DATA,
    REFUSED,
    SERVER_FAILURE,
    TIMED_OUT,
    lookup_word,
    was_cut,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME_SERVERS_FAIL: Final = frozenset({SERVER_FAILURE, REFUSED, TIMED_OUT})
"""What a stale answer is served for; never for what the name servers say of the name."""

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
        return DNSLookupError(f"not a name: {exc}", reason=MALFORMED_NAME)
    if isinstance(exc, AttributeError):
        # A closed ``aiohttp.AsyncResolver`` asks ``None`` for the answer.
        return closed() if exc.obj is None else exc
    if not isinstance(exc, OSError) or isinstance(exc, (DNSLookupError, aiohttp.ClientError)):
        return exc
    if was_cut(exc):
        return closed()
    return DNSLookupError(exc.strerror or str(exc) or "DNS lookup failed", reason=lookup_word(exc) or SERVER_FAILURE)


def most_telling(failures: Iterable[Exception]) -> Exception:
    """Return the failure that says most of a name, of those for A and for AAAA.

    "No such name" is said of all types at once (RFC 8020); "no data" is only the
    truth when nobody says anything else.
    """
    return min(failures, key=_rank)


def _rank(exc: Exception) -> int:
    return _MOST_TELLING.index(exc.reason) if isinstance(exc, DNSLookupError) else -1

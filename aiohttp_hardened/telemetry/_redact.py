"""Text without secrets: one function for every URL that is exported.

What an exception says is never exported (it may hold URLs, paths and header values):
spans carry ``error.type``, and no exception event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

if TYPE_CHECKING:
    from aiohttp_hardened._settings import TelemetrySettings

REDACTED = "REDACTED"


def redact_url(url: str, settings: TelemetrySettings) -> str:
    """Return a URL for export: without fragment, with user info and query values replaced.

    The URL is edited as text and never encoded again, so what is kept is what was sent.

    Args:
        url: Any URL or reference to one.
        settings: Whether the query is kept, and which keys never are.
    """
    if "?" not in url and "@" not in url and "#" not in url:
        return url
    url = url.partition("#")[0]
    url, question_mark, query = url.partition("?")
    scheme, slashes, rest = url.partition("//")
    authority, slash, path = rest.partition("/")
    if slashes and "@" in authority:
        url = f"{scheme}//{REDACTED}:{REDACTED}@{authority.rpartition('@')[2]}{slash}{path}"
    if not query:
        return url + question_mark
    return f"{url}?{'&'.join(_redact_pair(pair, settings) for pair in query.split('&'))}"


def _redact_pair(pair: str, settings: TelemetrySettings) -> str:
    key, equals, _ = pair.partition("=")
    if settings.keep_query and unquote_plus(key) not in settings.sensitive_query_keys:
        return pair
    # What stands alone may be a key or a value; it is kept back like a value.
    return f"{key}={REDACTED}" if equals else (REDACTED if pair else "")

"""URLs without secrets, in one function for every text that is exported."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yarl import URL

    from aiohttp_hardened._settings import TelemetrySettings

REDACTED = "REDACTED"


def redact_url(url: URL, settings: TelemetrySettings) -> str:
    """Return a URL for export: without fragment, with user info and query values replaced.

    The query is edited as text and never encoded again, so what is kept is what was sent.

    Args:
        url: Any absolute URL.
        settings: Whether the query is kept, and which keys never are.
    """
    query = url.raw_query_string
    if not query and url.raw_user is None and url.raw_password is None and not url.raw_fragment:
        return str(url)
    return _redact(url, settings)


@lru_cache(maxsize=512)
def _redact(url: URL, settings: TelemetrySettings) -> str:
    text = str(url.with_user(None).with_query(None).with_fragment(None))
    if url.raw_user is not None or url.raw_password is not None:
        scheme, _, rest = text.partition("://")
        text = f"{scheme}://{REDACTED}:{REDACTED}@{rest}"
    query = url.raw_query_string
    if not query:
        return text
    return f"{text}?{'&'.join(_redact_pair(pair, settings) for pair in query.split('&'))}"


def _redact_pair(pair: str, settings: TelemetrySettings) -> str:
    key, equals, _ = pair.partition("=")
    if settings.keep_query and key not in settings.sensitive_query_keys:
        return pair
    # What stands alone may be a key or a value; it is kept back like a value.
    return f"{key}={REDACTED}" if equals else (REDACTED if pair else "")

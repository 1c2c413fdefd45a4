"""One spelling of a host for SNI, verification, session keys and labels."""

from __future__ import annotations

from functools import lru_cache

from yarl import URL


@lru_cache(maxsize=1024)
def normalise_host(host: str) -> str:
    """Return a host without trailing dot, in lower case, as A-labels.

    The dot stays for DNS (it stops the search list); certificates, SNI (RFC 6066,
    section 3) and dashboards know the name without it.

    Args:
        host: A host as it stands in a URL, without brackets.
    """
    host = host.rstrip(".")
    if host.isascii():
        return host.lower()
    try:
        return URL.build(scheme="http", host=host).raw_host or host.lower()
    except ValueError:
        return host.lower()

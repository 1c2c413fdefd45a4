"""Trust decisions, their shared contexts, resumption and rotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp_hardened._settings import DEFAULTS
from aiohttp_hardened.tls._registry import context_for, reload_tls

if TYPE_CHECKING:
    import ssl

    from aiohttp_hardened._settings import TLSSettings

__all__ = ["create_ssl_context", "reload_tls"]


def create_ssl_context(tls: TLSSettings = DEFAULTS.tls) -> ssl.SSLContext:
    """Return the shared context of a trust decision, for everything that takes an ``ssl.SSLContext``.

    Equal settings give the same object. It cannot be changed by who holds it, and
    ``reload_tls`` reaches whoever uses it. Builds at once when it is the first call, which
    takes 20-60 ms: call it at start-up. (Sessions build theirs in a thread.) ALPN
    ``http/1.1`` is offered by our sessions alone: a database may refuse a protocol that is
    not its own.

    Args:
        tls: The trust decision.

    Raises:
        SettingsError: A file holds nothing that can serve; with OpenSSL's reason.
    """
    return context_for(tls)

"""Which budget holds for which phase of one request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import aiohttp
from aiohttp.client import DEFAULT_TIMEOUT

if TYPE_CHECKING:
    from aiohttp_hardened._settings import TimeoutSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The budgets of one request, in seconds; ``None``: no limit.

    Args:
        queue: Waiting for a free connection.
        dns: One lookup.
        tcp: One race.
        tls: One handshake.
        connect: The whole set-up.
        sock_connect: TCP and TLS together over all addresses; set by a
            request's own ``ClientTimeout(sock_connect=...)``, and then instead of
            ``tcp`` and ``tls``.
        queue_and_connect: ``connect`` counts from the start of the wait in the
            queue; set by a request's own ``ClientTimeout(connect=...)``.
        total: aiohttp's own, for notes.
        theirs: The timeout that aiohttp holds by itself, for notes; of somebody
            else's connector.
        ours: Whether aiohttp is told to leave connecting to these budgets.
    """

    queue: float | None = None
    dns: float | None = None
    tcp: float | None = None
    tls: float | None = None
    connect: float | None = None
    sock_connect: float | None = None
    queue_and_connect: bool = False
    total: float | None = None
    theirs: aiohttp.ClientTimeout | None = None
    ours: bool = True


UNLIMITED: Final = Budgets(ours=False)


@lru_cache(maxsize=256)
def budgets_for(
    settings: TimeoutSettings | None, timeout: aiohttp.ClientTimeout
) -> tuple[Budgets, aiohttp.ClientTimeout]:
    """Merge a request's timeout over the settings' budgets.

    A field that the request's ``ClientTimeout`` leaves ``None`` says nothing, but
    for ``total``. aiohttp's default timeout is nobody's decision and says nothing.

    Args:
        settings: Budgets of the connector; ``None``: somebody else's connector,
            whose requests keep aiohttp's own timeouts.
        timeout: What aiohttp gives ``connect()``.

    Returns:
        The budgets, and the timeout to hand on to aiohttp's own ``connect()``.
    """
    if settings is None:
        return Budgets(total=timeout.total, theirs=timeout, ours=False), timeout
    connect = timeout.connect
    sock_connect = None if timeout is DEFAULT_TIMEOUT or timeout == DEFAULT_TIMEOUT else timeout.sock_connect
    # aiohttp's meaning of 0 is "no limit" (``helpers.ceil_timeout``).
    budgets = Budgets(
        queue=settings.queue if connect is None else (connect or None),
        dns=settings.dns,
        tcp=settings.tcp if sock_connect is None else None,
        tls=settings.tls if sock_connect is None else None,
        connect=settings.connect if connect is None else (connect or None),
        sock_connect=sock_connect or None,
        queue_and_connect=bool(connect),
        total=timeout.total,
    )
    return budgets, aiohttp.ClientTimeout(total=timeout.total, ceil_threshold=timeout.ceil_threshold)

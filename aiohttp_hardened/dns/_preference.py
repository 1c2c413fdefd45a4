"""Which of two families goes first (RFC 6724, section 6).

c-ares sorts the addresses of one answer; those of A and AAAA are two answers.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp_hardened.dns._stale import Address

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# RFC 6724, section 2.1: prefix, precedence, label. IPv4 stands under its mapped prefix.
_POLICY: Final = tuple(
    (ipaddress.IPv6Network(prefix), precedence, label)
    for prefix, precedence, label in (
        ("::1/128", 50, 0),
        ("::ffff:0:0/96", 35, 4),
        ("::/96", 1, 3),
        ("2001::/32", 5, 5),
        ("2002::/16", 30, 2),
        ("3ffe::/16", 1, 12),
        ("fec0::/10", 1, 11),
        ("fc00::/7", 3, 13),
        ("::/0", 40, 1),
    )
)
_ANY_PORT: Final = 9
"""Connecting a UDP socket sends nothing; the port does not matter."""


def in_order_of_preference(six: Sequence[Address], four: Sequence[Address]) -> list[Address]:
    """Return the addresses of both families, those first whose first one is preferred.

    Without this a host that has no IPv6 would begin each race with an address that it
    has no route to.
    """
    if six and four and _preference(four[0]) > _preference(six[0]):
        return [*four, *six]
    return [*six, *four]


def _preference(address: Address) -> tuple[bool, bool, bool, int]:
    """Return what rules 1, 2, 5 and 6 of RFC 6724, section 6 compare; the greater one goes first."""
    source = _source(address)
    if source is None:
        return False, False, False, 0
    target = _parse(address[0])
    precedence, label = _policy(target)
    same_scope = _is_link_local(target) == _is_link_local(source)
    return True, same_scope, label == _policy(source)[1], precedence


def _source(address: Address) -> IPAddress | None:
    """Return the address that packets would be sent from; ``None``: there is no route."""
    host, family = address
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((host, _ANY_PORT))
            return _parse(str(sock.getsockname()[0]))
    except OSError:
        return None


def _parse(address: str) -> IPAddress:
    return ipaddress.ip_address(address.partition("%")[0])


def _policy(address: IPAddress) -> tuple[int, int]:
    six = ipaddress.IPv6Address(f"::ffff:{address}") if address.version == 4 else address  # noqa: PLR2004
    return next((precedence, label) for network, precedence, label in _POLICY if six in network)


def _is_link_local(address: IPAddress) -> bool:
    """Say whether the scope is the link; loopback counts as that (RFC 6724, section 3.1)."""
    return address.is_link_local or address.is_loopback

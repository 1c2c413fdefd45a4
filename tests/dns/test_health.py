from __future__ import annotations

import socket

from aiohttp_hardened.dns import _health
from aiohttp_hardened.dns._health import AddressHealth

A, B, C = "127.0.0.1", "127.0.0.2", "::1"


class Ordered:
    """Address health on a clock that a test moves."""

    def __init__(self, quarantine: float = 30.0) -> None:
        self.now = 1000.0
        self.health = AddressHealth(quarantine, lambda: self.now)

    def __call__(self, *addresses: str) -> list[str]:
        infos = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (each, 80, 0, 0))
            if ":" in each
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 80))
            for each in addresses
        ]
        ordered = self.health.order(infos)
        assert sorted(ordered) == sorted(infos), "none is left out"
        return [each[4][0] for each in ordered]


def test_the_order_stays() -> None:
    """Addresses that did nothing wrong keep their order."""
    assert Ordered()(C, A, B) == [C, A, B]


def test_a_failed_address_goes_last() -> None:
    """An address that failed goes behind its siblings, and the one that failed last goes last."""
    order = Ordered()
    order.health.failed([A])
    assert order(A, B, C) == [B, C, A]
    order.now += 1
    order.health.failed([C])
    assert order(C, A, B) == [B, A, C]
    order.now += 1
    order.health.failed([A])
    assert order(A, B, C) == [B, C, A]


def test_the_only_address_is_tried() -> None:
    """A name whose only address failed is tried there."""
    order = Ordered()
    order.health.failed([A])
    assert order(A) == [A]


def test_quarantine_ends() -> None:
    """After the quarantine an address has its place again."""
    order = Ordered()
    order.health.failed([A])
    order.now += 29.9
    assert order(A, B) == [B, A]
    order.now += 0.2
    assert order(A, B) == [A, B]


def test_success_forgives() -> None:
    """An address that connects has its place again at once."""
    order = Ordered()
    order.health.failed([A])
    order.health.succeeded((A, 80))
    order.health.succeeded(None)
    assert order(A, B) == [A, B]


def test_no_quarantine() -> None:
    """With a quarantine of 0 the order always stays."""
    order = Ordered(0.0)
    order.health.failed([A])
    assert order(A, B) == [A, B]


def test_addresses_are_bounded() -> None:
    """Of more than a thousand failed addresses the earliest are forgotten, and those that served their time."""
    order = Ordered()
    order.health.failed(f"127.0.{number // 250}.{number % 250}" for number in range(_health.MOST_ADDRESSES + 10))
    assert len(order.health._failed) == _health.MOST_ADDRESSES
    order.now += 60
    order.health.failed([A])
    assert list(order.health._failed) == [A]

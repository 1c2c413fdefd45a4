from __future__ import annotations

import socket

import pytest

from aiohttp_hardened.dns import _preference
from aiohttp_hardened.dns._preference import in_order_of_preference

FOUR = int(socket.AF_INET)
SIX = int(socket.AF_INET6)


@pytest.mark.parametrize(
    ("six", "from_six", "four", "from_four", "first"),
    [
        ("2620:1::1", "2620:2::2", "203.0.114.1", "203.0.114.9", SIX),
        ("2620:1::1", None, "203.0.114.1", "203.0.114.9", FOUR),
        ("2620:1::1", "2620:2::2", "203.0.114.1", None, SIX),
        ("2620:1::1", None, "203.0.114.1", None, SIX),
        # Only a link-local address of one's own: no way to the world (rule 2).
        ("2620:1::1", "fe80::2", "203.0.114.1", "203.0.114.9", FOUR),
        # Only a unique local address of one's own: a network without a way out (rule 5).
        ("2620:1::1", "fd00::2", "203.0.114.1", "203.0.114.9", FOUR),
        # A unique local address within one's own network (rules 5 and 6).
        ("fd00::1", "fd00::2", "203.0.114.1", "203.0.114.9", FOUR),
        # Teredo (rule 6).
        ("2001::1", "2001::2", "203.0.114.1", "203.0.114.9", FOUR),
        ("::1", "::1", "127.0.0.1", "127.0.0.1", SIX),
        ("fe80::1%lo", "fe80::2%lo", "203.0.114.1", "203.0.114.9", SIX),
    ],
)
def test_the_family_that_goes_first(
    monkeypatch: pytest.MonkeyPatch, six: str, from_six: str | None, four: str, from_four: str | None, first: int
) -> None:
    """The rules 1, 2, 5 and 6 of RFC 6724, section 6 decide by the first address of each family."""
    sources = {six: from_six, four: from_four}

    def source(address: tuple[str, int]) -> object:
        found = sources[address[0]]
        return None if found is None else _preference._parse(found)

    monkeypatch.setattr(_preference, "_source", source)
    ordered = in_order_of_preference([(six, SIX), ("2620::9", SIX)], [(four, FOUR), ("203.0.114.9", FOUR)])
    assert [family for _, family in ordered] == [first] * 2 + [SIX if first == FOUR else FOUR] * 2


def test_one_family() -> None:
    """Where there is one family nothing is compared."""
    assert in_order_of_preference([], [("203.0.114.1", FOUR)]) == [("203.0.114.1", FOUR)]
    assert in_order_of_preference([("2620::1", SIX)], []) == [("2620::1", SIX)]


def test_loopback_has_a_source() -> None:
    """The kernel says from where packets would be sent, without sending one."""
    assert str(_preference._source(("127.0.0.1", FOUR))) == "127.0.0.1"
    assert _preference._source(("not an address", FOUR)) is None

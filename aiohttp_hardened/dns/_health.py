"""Addresses that failed lately go behind their siblings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

AddrInfo = tuple[int, int, int, str, tuple[Any, ...]]

MOST_ADDRESSES: Final = 1000


class AddressHealth:
    """Which addresses of a connector failed to connect, or were overtaken, lately.

    aiohttp rotates a name's cached addresses, so without this a dead one costs the
    Happy Eyeballs delay on every second connection.

    Args:
        quarantine: Seconds that an address stays behind; 0: none does.
        clock: Seconds that never go back.
    """

    def __init__(self, quarantine: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quarantine = quarantine
        self._clock = clock
        self._failed: dict[str, float] = {}
        """When each address failed, the earliest first."""

    def order(self, addr_infos: Sequence[AddrInfo]) -> list[AddrInfo]:
        """Return the addresses in their order, but those that failed lately last, and the latest of them at the end.

        None is left out: the only address of a name is tried whatever it did.
        """
        if not self._failed:
            return list(addr_infos)
        since = self._clock() - self._quarantine

        def failed(each: AddrInfo) -> float:
            when = self._failed.get(str(each[4][0]))
            return when if when is not None and when > since else 0.0

        return sorted(addr_infos, key=failed)

    def failed(self, addresses: Iterable[str]) -> None:
        """Put addresses behind their siblings."""
        if not self._quarantine:
            return
        now = self._clock()
        for address in addresses:
            self._failed.pop(address, None)
            self._failed[address] = now
        since = now - self._quarantine
        while self._failed:
            earliest = next(iter(self._failed))
            if self._failed[earliest] > since and len(self._failed) <= MOST_ADDRESSES:
                break
            del self._failed[earliest]

    def succeeded(self, winner: tuple[str, int] | None) -> None:
        """Forgive an address that connected."""
        if winner is not None:
            self._failed.pop(winner[0], None)

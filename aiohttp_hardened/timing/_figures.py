"""Plain numbers that other parts count and telemetry observes.

A synchronous ``add`` before a MeterProvider exists is lost, and a series that is
born at 1 hides its first increase from ``increase()``. These numbers exist at 0
from the start, cost an addition to change, and are read when metrics are collected.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final, Literal

ReloadOutcome = Literal["applied", "unchanged", "rejected"]
TLSRole = Literal["client", "server"]

RELOAD_OUTCOMES: Final[tuple[ReloadOutcome, ...]] = ("applied", "unchanged", "rejected")

_MOST_PEERS: Final = 1000


class Figures:
    """The numbers of this process; ``figures`` is the only one.

    Every field is read by telemetry at collection time, from another thread.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may change a figure while its thread holds the lock
        self.telemetry_errors = 0
        """Failures of hooks that were contained."""
        self.ssl_contexts = 0
        """Live client and server contexts that this package built."""
        self.tls_reloads: Counter[tuple[str, ReloadOutcome]] = Counter()
        """Reloads by trust decision and outcome."""
        self.own_not_after: dict[tuple[str, TLSRole], float] = {}
        """End of own certificates, unix time, by trust decision and role."""
        self.peer_not_after: dict[str, float] = {}
        """End of the certificates that peers showed, unix time, by server address."""

    def count_telemetry_error(self) -> None:
        """Count one contained failure of a hook."""
        with self._lock:
            self.telemetry_errors += 1

    def change_ssl_contexts(self, by: int) -> None:
        """Count contexts built (1) and freed (-1)."""
        with self._lock:
            self.ssl_contexts += by

    def show_peer_not_after(self, server_address: str, ends: float) -> None:
        """Keep when a peer's certificate ends (unix time), for a bounded number of peers."""
        if server_address in self.peer_not_after or len(self.peer_not_after) < _MOST_PEERS:
            self.peer_not_after[server_address] = ends

    def announce_reloads(self, name: str) -> None:
        """Let the counters of a trust decision exist at 0."""
        with self._lock:
            for outcome in RELOAD_OUTCOMES:
                self.tls_reloads.setdefault((name, outcome), 0)

    def count_reload(self, name: str, outcome: ReloadOutcome) -> None:
        """Count one reload of a trust decision."""
        with self._lock:
            self.tls_reloads[name, outcome] += 1


figures: Final = Figures()

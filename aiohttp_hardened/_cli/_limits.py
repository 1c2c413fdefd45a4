"""What the doctor calls too much: every threshold is a literal here, with its reason.

They are those of the alerts. Clusters lie between two edges of the histograms
(``CONNECT_EDGES`` in ``telemetry/_names.py``), so what is counted there is exact.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Limit(NamedTuple):
    """What is still fine.

    Args:
        value: The highest, or lowest, value that is no finding.
        what: Of what, with its unit.
        reason: Why this value.
    """

    value: float
    what: str
    reason: str


class Cluster(NamedTuple):
    """Where connects pile up under a known failure.

    Args:
        low: Seconds, an edge of the histogram.
        high: Seconds, an edge of the histogram.
        before: Seconds, the edge below ``low``.
        after: Seconds, the edge above ``high``.
    """

    low: float
    high: float
    before: float
    after: float


SLOW_LOOKUP: Final = Limit(
    0.05, "p99 of successful DNS lookups, in seconds", "a name server on the same network answers in 1-5 ms"
)
FAILED_SHARE: Final = Limit(
    0.01, "share of a host's connection set-ups or handshakes that failed", "one in a hundred is felt by users"
)
OVERTAKEN_SHARE: Final = Limit(
    0.001,
    "share of a host's connects that took one Happy Eyeballs delay (0.24 to 0.3 s)",
    "quarantine hides a dead address for 30 s at a time, so only the first connect of each shows it",
)
RESENT_SHARE: Final = Limit(
    0.01,
    "share of a host's connects that took one or two SYN retransmissions (0.9 to 1.2 s, 2.9 to 3.3 s)",
    "the open internet loses fewer SYNs than that",
)
SLOW_HANDSHAKE: Final = Limit(
    1.0, "median of successful TLS handshakes, in seconds", "the slowest key and the farthest peer need less"
)
HANDSHAKES_PER_REQUEST: Final = Limit(
    0.1, "avoidable handshakes per request to a host", "a pooled connection serves more than ten requests"
)
FEWEST_REQUESTS: Final = Limit(10, "requests to a host before its handshakes are judged", "fewer say nothing of a pool")
FILLING: Final = Limit(
    10, "full handshakes to a host that a pool may need to fill", "first connections made at once cannot be resumed"
)
FEWEST_RESUMABLE: Final = Limit(
    10, "avoidable handshakes to a host before resumption is judged", "a few lost tickets are no pattern"
)
RESUMED_SHARE: Final = Limit(
    0.5, "share of avoidable handshakes that must be resumed", "a sound store resumes nine of ten; a broken one four"
)
DAYS_LEFT: Final = Limit(7, "days that a certificate must still hold", "a renewal that failed has a week to be noticed")
QUEUE_TIMEOUTS: Final = Limit(0, "requests that gave up waiting for a connection", "nobody plans for one")
STALE_ANSWERS: Final = Limit(0, "stale addresses served", "each means that no name server answered")
REJECTED_RELOADS: Final = Limit(0, "rejected certificate reloads", "the old certificate goes on until it ends")
PLAINTEXT_BYTES: Final = Limit(0, "tunnels with plaintext in front of TLS", "it is a fault or an attack, never load")
TELEMETRY_ERRORS: Final = Limit(0, "contained failures of telemetry hooks", "figures are missing since then")
QUEUED_JOBS: Final = Limit(0, "jobs that wait for a thread of the default executor", "lookups there would wait as well")
CONTEXTS: Final = Limit(16, "live TLS contexts in a process", "there is one per trust decision, whatever the traffic")
CONTEXT_GROWTH: Final = Limit(1, "TLS contexts built between two looks", "a trust decision's first use builds one")

HAPPY_EYEBALLS: Final = Cluster(0.24, 0.3, before=0.2, after=0.5)
SYN_RETRANSMISSIONS: Final = (Cluster(0.9, 1.2, before=0.5, after=2.0), Cluster(2.9, 3.3, before=2.0, after=5.0))

ALL: Final = tuple(each for each in list(globals().values()) if isinstance(each, Limit))

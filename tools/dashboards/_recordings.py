"""What the alerts have in common: counts that know first failures, and recorded ratios and quantiles."""

from __future__ import annotations

from typing import Final

from tools.dashboards._series import DNS, ERROR, FAILED, FINE, HOST, NAME, PORT, REQUESTS, TCP, TLS, WAS_RESUMED

Rule = dict[str, object]

SERVER: Final = ("job", HOST, PORT)
PROCESS_AND_SERVER: Final = ("job", "instance", HOST, PORT)

QUANTILES: Final = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
FEWEST: Final = 3
"""So many connects must lie beyond a quantile for it to say anything."""

CONNECT_BUCKETS: Final = f"server_le:{TCP}_bucket:increase_10m"
CONNECTS: Final = f"server:{TCP}_count:increase_10m"
CONNECT_QUANTILE: Final = f"server:{TCP}:quantile_10m"
DNS_P99: Final = f"name:{DNS}:p99_15m"
DNS_FAILURES: Final = f"name_error:{DNS}:failures_10m"
DNS_FAILURE_RATIO: Final = f"name_error:{DNS}:failure_ratio_10m"
TLS_FAILURES: Final = f"server_error:{TLS}:failures_10m"
TLS_FAILURE_RATIO: Final = f"server_error:{TLS}:failure_ratio_10m"
HANDSHAKES_PER_REQUEST: Final = f"instance_server:{TLS}:per_request_10m"
RESUMPTION: Final = f"server:{TLS}:resumed_ratio_15m"


def fresh(series: str, selector: str, window: str) -> str:
    """Return what counters gained within a window, a series that was born in it included.

    ``increase()`` needs two samples, so it hides what a series had when it was first seen:
    the first failure, which is the one that matters, and a burst at the start of a process.
    """
    selected = f"{series}{{{selector}}}" if selector else series
    return f"(({selected} unless {selected} offset {window}) or increase({selected}[{window}]))"


def total(series: str, selector: str, window: str, by: tuple[str, ...]) -> str:
    """Return `fresh` counts, summed by labels."""
    return f"sum by ({', '.join(by)}) {fresh(series, selector, window)}"


def recordings() -> list[Rule]:
    """Return the recording rules."""
    return [
        {"record": CONNECT_BUCKETS, "expr": total(f"{TCP}_bucket", "", "10m", (*SERVER, "le"))},
        {"record": CONNECTS, "expr": total(f"{TCP}_count", "", "10m", SERVER)},
        *(_connect_quantile(quantile) for quantile in QUANTILES),
        {"record": DNS_P99, "expr": _dns_p99()},
        *_failures(DNS, ("job", NAME), DNS_FAILURES, DNS_FAILURE_RATIO),
        *_failures(TLS, SERVER, TLS_FAILURES, TLS_FAILURE_RATIO),
        {"record": HANDSHAKES_PER_REQUEST, "expr": _handshakes_per_request()},
        {"record": RESUMPTION, "expr": _resumption()},
    ]


def _connect_quantile(quantile: float) -> Rule:
    return {
        "record": CONNECT_QUANTILE,
        "labels": {"quantile": str(quantile)},
        "expr": f"histogram_quantile({quantile}, {CONNECT_BUCKETS})\n"
        f"and on ({', '.join(SERVER)})\n{CONNECTS} * {round(1 - quantile, 3)} >= {FEWEST}",
    }


def _dns_p99() -> str:
    by = ("job", NAME)
    value = f"histogram_quantile(0.99, {total(f'{DNS}_bucket', '', '15m', (*by, 'le'))})"
    # One slow lookup is no percentile. increase() extrapolates, so two may look like a little less.
    return f"{value}\nand on ({', '.join(by)})\n{total(f'{DNS}_count', '', '15m', by)} > 1.5"


def _failures(family: str, by: tuple[str, ...], count: str, share: str) -> list[Rule]:
    whole = total(f"{family}_count", "", "10m", by)
    return [
        {"record": count, "expr": total(f"{family}_count", FAILED, "10m", (*by, ERROR))},
        {"record": share, "expr": f"{count}\n/ on ({', '.join(by)}) group_left ()\n({whole} > 0)"},
    ]


def _handshakes_per_request() -> str:
    """For hosts that a process asks every 5 s or more often: a pool keeps connections for three times as long."""
    handshakes = total(f"{TLS}_count", FINE, "10m", PROCESS_AND_SERVER)
    return f"{handshakes}\n/\n({total(f'{REQUESTS}_count', '', '10m', PROCESS_AND_SERVER)} >= 120)"


def _resumption() -> str:
    done = total(f"{TLS}_count", FINE, "15m", SERVER)
    resumed = total(f"{TLS}_count", f"{WAS_RESUMED}, {FINE}", "15m", SERVER)
    return f"({resumed} or {done} * 0)\n/\n({done} >= 10)"

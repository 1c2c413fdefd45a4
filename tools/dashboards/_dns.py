"""DNS: where answers come from, how lookups fail, what the default executor does meanwhile."""

from __future__ import annotations

from typing import Any

from aiohttp_hardened.telemetry import _names
from tools.dashboards._panels import (
    FULL,
    LOOKUP,
    PROCESS,
    board,
    graph,
    heat_map,
    percentiles,
    quantile,
    rate,
    ratio,
    total,
)
from tools.dashboards._series import BUSY, DNS, DNS_ASKED, ERROR, FAILED, NAME, QUEUED, SOURCE


def dns() -> dict[str, Any]:
    """Return the dashboard."""
    return board(
        "dns",
        "DNS",
        "Where addresses come from, how long lookups take, and how they fail.",
        {"Answers": _answers(), "Lookups": _lookups(), "Failures": _failures()},
    )


def _answers() -> list[Any]:
    return [
        graph(
            "Answers by source",
            "cache: no lookup; coalesced: somebody else's; stale: name servers fail; system: getaddrinfo.",
            "cps",
            (rate(DNS_ASKED, PROCESS, SOURCE), f"{{{{{SOURCE}}}}}"),
            stacked=True,
        ),
        graph(
            "Cached and stale share",
            "Of all names asked for. Anything stale means that name servers fail.",
            "percentunit",
            *[
                (ratio(rate(DNS_ASKED, f'{PROCESS}, {SOURCE}="{source}"'), rate(DNS_ASKED, PROCESS)), source)
                for source in (_names.SOURCE_CACHE, _names.SOURCE_STALE)
            ],
        ),
    ]


def _lookups() -> list[Any]:
    return [
        graph("Duration", "Real lookups.", "s", *percentiles(DNS, LOOKUP)),
        graph(
            "Slowest names, p99",
            "Real lookups.",
            "s",
            (f"topk(10, {quantile(0.99, DNS, LOOKUP, NAME)})", f"{{{{{NAME}}}}}"),
        ),
        graph(
            "Executor threads beside DNS time",
            "What a lookup through loop.getaddrinfo would have waited for: threads of the default executor that are "
            "busy, and jobs queued for one. No line where the loop does not show it (uvloop).",
            "s",
            (quantile(0.95, DNS, LOOKUP), "DNS p95"),
            (total(BUSY, PROCESS), "threads busy"),
            (total(QUEUED, PROCESS), "jobs queued"),
            width=FULL,
            right=("threads busy|jobs queued", "threads, jobs"),
        ),
        heat_map("Duration", "How many took how long.", DNS, LOOKUP, width=FULL),
    ]


def _failures() -> list[Any]:
    count = f"{DNS}_count"
    return [
        graph(
            "Failed lookups by error",
            "In a second.",
            "cps",
            (rate(count, f"{LOOKUP}, {FAILED}", ERROR), f"{{{{{ERROR}}}}}"),
            stacked=True,
        ),
        graph(
            "Failed lookups by name",
            "In a second.",
            "cps",
            (rate(count, f"{LOOKUP}, {FAILED}", NAME, ERROR), f"{{{{{NAME}}}}} {{{{{ERROR}}}}}"),
        ),
    ]

"""Connection set-up: DNS, TCP and TLS side by side."""

from __future__ import annotations

from typing import Any

from tools.dashboards._panels import FULL, LOOKUP, SERVER, THIRD, board, graph, heat_map, percentiles, rate, ratio
from tools.dashboards._series import DNS, ERROR, FAILED, FINE, HOST, NETWORK, RETRANSMITS, SETUP, TCP, TLS

_PHASES = ((DNS, LOOKUP, "DNS"), (TCP, SERVER, "TCP"), (TLS, SERVER, "TLS"))


def connection_setup() -> dict[str, Any]:
    """Return the dashboard."""
    return board(
        "connection-setup",
        "connection set-up",
        "How long DNS, TCP and TLS take, how often they are tried, and how they fail.",
        {"Percentiles": _percentiles(), "Heat maps": _heat_maps(), "Attempts": _attempts()},
    )


def _percentiles() -> list[Any]:
    words = {
        "DNS": "Real lookups; cached and shared answers cost none.",
        "TCP": "Races over a host's addresses. Lines at 0.25 s: a dead first address. At 1 s or 3 s: lost SYNs.",
        "TLS": "Handshakes, full and resumed.",
    }
    return [
        graph(phase, words[phase], "s", *percentiles(family, selector), width=THIRD)
        for family, selector, phase in _PHASES
    ]


def _heat_maps() -> list[Any]:
    return [heat_map(phase, "How many took how long.", family, selector) for family, selector, phase in _PHASES]


def _attempts() -> list[Any]:
    return [
        graph(
            "Connection set-ups by host",
            "New connections in a second.",
            "cps",
            (rate(f"{SETUP}_count", SERVER, HOST), f"{{{{{HOST}}}}}"),
            stacked=True,
        ),
        graph(
            "Failed set-ups by error",
            "error.type begins with the phase.",
            "cps",
            (rate(f"{SETUP}_count", f"{SERVER}, {FAILED}", ERROR), f"{{{{{ERROR}}}}}"),
            stacked=True,
        ),
        graph(
            "TCP races per set-up",
            "1 is what it should be; more: connected addresses failed in TLS and the next ones were tried. Races to a "
            "proxy count for the proxy.",
            "short",
            (ratio(rate(f"{TCP}_count", SERVER, HOST), rate(f"{SETUP}_count", SERVER, HOST)), f"{{{{{HOST}}}}}"),
        ),
        graph(
            "SYN retransmissions by host",
            "Segments in a second, as the kernel counted them: an accept queue that overflows, or packets lost.",
            "cps",
            (rate(RETRANSMITS, SERVER, HOST), f"{{{{{HOST}}}}}"),
        ),
        graph(
            "TCP by network and error",
            "Races in a second. A race that failed was in no network.",
            "cps",
            (rate(f"{TCP}_count", f"{SERVER}, {FINE}", NETWORK), f"connected, {{{{{NETWORK}}}}}"),
            (rate(f"{TCP}_count", f"{SERVER}, {FAILED}", ERROR), f"{{{{{ERROR}}}}}"),
            stacked=True,
        ),
        graph("Whole set-up", "DNS, TCP, tunnel and TLS.", "s", *percentiles(SETUP, SERVER)),
        heat_map("Whole set-up", "How many took how long.", SETUP, SERVER, width=FULL),
    ]

"""The pool: waiting for a connection, connections open and idle, how old they become."""

from __future__ import annotations

from typing import Any

from tools.dashboards._panels import FULL, SERVER, board, graph, heat_map, percentiles, rate, ratio, total
from tools.dashboards._series import (
    ACTIVE_REQUESTS,
    CONNECTIONS,
    FAILED,
    HOST,
    METHOD,
    OPEN_CONNECTIONS,
    QUEUE,
    REQUESTS,
    STATE,
)


def pool() -> dict[str, Any]:
    """Return the dashboard."""
    return board(
        "pool",
        "pool",
        "Whether requests wait for a connection, and how connections live.",
        {"Queue": _queue(), "Connections": _connections(), "Ages": _ages()},
    )


def _queue() -> list[Any]:
    waited = f"{QUEUE}_count"
    return [
        graph(
            "Time in queue", "Of requests that had to wait for a pooled connection.", "s", *percentiles(QUEUE, SERVER)
        ),
        graph(
            "Requests that waited",
            "By host, and those that gave up.",
            "reqps",
            (rate(waited, SERVER, HOST), f"{{{{{HOST}}}}}"),
            (rate(waited, f"{SERVER}, {FAILED}", HOST), f"{{{{{HOST}}}}} timed out"),
        ),
        graph(
            "Share that waited",
            "Of all requests.",
            "percentunit",
            (ratio(rate(waited, SERVER, HOST), rate(f"{REQUESTS}_count", SERVER, HOST)), f"{{{{{HOST}}}}}"),
        ),
        graph(
            "Requests under way",
            "By method.",
            "short",
            (total(ACTIVE_REQUESTS, SERVER, METHOD), f"{{{{{METHOD}}}}}"),
            stacked=True,
        ),
    ]


def _connections() -> list[Any]:
    return [
        graph(
            "Open connections",
            "Idle ones are ready for the next request.",
            "short",
            (total(OPEN_CONNECTIONS, SERVER, STATE), f"{{{{{STATE}}}}}"),
            stacked=True,
        ),
        graph(
            "Open connections by host",
            "Active and idle.",
            "short",
            (total(OPEN_CONNECTIONS, SERVER, HOST), f"{{{{{HOST}}}}}"),
            stacked=True,
        ),
    ]


def _ages() -> list[Any]:
    return [
        graph("Age at close", "How long connections lived.", "s", *percentiles(CONNECTIONS, SERVER)),
        graph(
            "Connections closed",
            "By host, in a second.",
            "cps",
            (rate(f"{CONNECTIONS}_count", SERVER, HOST), f"{{{{{HOST}}}}}"),
            stacked=True,
        ),
        heat_map("Age at close", "How many lived how long.", CONNECTIONS, SERVER, width=FULL),
    ]

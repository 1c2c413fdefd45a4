"""The overview: what requests do, where their time goes, in which phase they fail."""

from __future__ import annotations

from typing import Any

from tools.dashboards._panels import (
    FULL,
    PROCESS,
    SERVER,
    board,
    figure,
    graph,
    heat_map,
    percentiles,
    quantile,
    rate,
    ratio,
    total,
)
from tools.dashboards._panels import LOOKUP as LOOKED_UP
from tools.dashboards._series import (
    ACTIVE_REQUESTS,
    DNS,
    ERROR,
    FAILED,
    FINE,
    HOST,
    OPEN_CONNECTIONS,
    QUEUE,
    REQUESTS,
    SETUP,
    STATUS,
    TCP,
    TELEMETRY_ERRORS,
    TLS,
)

_COUNT = f"{REQUESTS}_count"
_ERRORS = rate(_COUNT, f"{SERVER}, {FAILED}", ERROR)
# error.type begins with the phase where connection set-up failed; the rest are statuses and exceptions.
_IN_SETUP = f'label_replace({_ERRORS}, "phase", "$1", "{ERROR}", "(queue|dns|tcp|tunnel|tls)_.+")'
_BY_PHASE = f'sum by (phase) (label_replace({_IN_SETUP}, "phase", "request", "phase", ""))'


def overview() -> dict[str, Any]:
    """Return the dashboard."""
    return board(
        "overview",
        "overview",
        "What outbound requests do, where their time goes, and in which phase they fail.",
        {"Now": _now(), "Requests": _requests(), "Errors": _errors(), "Where connection time goes": _time()},
    )


def _now() -> list[Any]:
    return [
        figure("Requests", "Send attempts in a second.", "reqps", rate(_COUNT, SERVER)),
        figure(
            "Errors",
            "Share of attempts that failed, or were answered with 400 or above.",
            "percentunit",
            ratio(f"({rate(_COUNT, f'{SERVER}, {FAILED}')} or vector(0))", rate(_COUNT, SERVER)),
            worst=0.05,
        ),
        figure("p99", "Time to the response's headers.", "s", quantile(0.99, REQUESTS, SERVER)),
        figure(
            "New connections",
            "Connection set-ups per request: 0 is a pool that works, 1 is none.",
            "percentunit",
            ratio(rate(f"{SETUP}_count", SERVER), rate(_COUNT, SERVER)),
        ),
        figure("Open connections", "Active and idle.", "short", total(OPEN_CONNECTIONS, SERVER)),
        figure(
            "Telemetry errors",
            "Contained failures of hooks, in the last hour: spans or metrics are missing.",
            "short",
            f"sum(increase({TELEMETRY_ERRORS}{{{PROCESS}}}[1h]))",
            worst=1,
        ),
    ]


def _requests() -> list[Any]:
    return [
        graph(
            "Requests by status",
            "Each send attempt: a redirect's hop and a silent retry count by themselves.",
            "reqps",
            (rate(_COUNT, f'{SERVER}, {STATUS}!=""', STATUS), f"{{{{{STATUS}}}}}"),
            (rate(_COUNT, f'{SERVER}, {STATUS}="", {FAILED}'), "no response"),
            stacked=True,
        ),
        graph("Time to headers", "From before a connection is asked for.", "s", *percentiles(REQUESTS, SERVER)),
        graph("Slowest hosts, p99", "Time to headers.", "s", (_slowest(), f"{{{{{HOST}}}}}")),
        graph(
            "Requests under way",
            "By host; a host that grows alone does not answer.",
            "short",
            (total(ACTIVE_REQUESTS, SERVER, HOST), f"{{{{{HOST}}}}}"),
            stacked=True,
        ),
        heat_map("Time to headers", "How many took how long.", REQUESTS, SERVER, width=FULL),
    ]


def _slowest() -> str:
    return f"topk(10, {quantile(0.99, REQUESTS, SERVER, HOST)})"


def _errors() -> list[Any]:
    return [
        graph(
            "Errors by phase",
            "Where requests fail; 'request' is after the connection stood: a status from 400 up, a reset, a timeout.",
            "reqps",
            (_BY_PHASE, "{{phase}}"),
            stacked=True,
        ),
        graph(
            "Errors by host",
            "With the word that error.type, the note on the exception and the runbook use.",
            "reqps",
            (rate(_COUNT, f"{SERVER}, {FAILED}", HOST, ERROR), f"{{{{{HOST}}}}} {{{{{ERROR}}}}}"),
        ),
    ]


def _time() -> list[Any]:
    phases = [(QUEUE, SERVER, "queue"), (DNS, LOOKED_UP, "dns"), (TCP, SERVER, "tcp"), (TLS, SERVER, "tls")]
    spent = [(rate(f"{family}_sum", selector), phase) for family, selector, phase in phases]
    return [
        graph(
            "Time spent in each phase",
            "Seconds in a second, over all requests: the largest is what to look at first.",
            "s",
            *spent,
            stacked=True,
        ),
        graph(
            "Connection set-up, p99 by host",
            "DNS, TCP, the proxy's tunnel and TLS together; only those that succeeded.",
            "s",
            (f"topk(10, {quantile(0.99, SETUP, f'{SERVER}, {FINE}', HOST)})", f"{{{{{HOST}}}}}"),
        ),
    ]

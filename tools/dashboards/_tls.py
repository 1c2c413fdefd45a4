"""TLS: handshakes, resumption, certificates, reloads."""

from __future__ import annotations

from typing import Any

from tools.dashboards._panels import PROCESS, SERVER, board, graph, percentiles, quantile, rate, ratio, total
from tools.dashboards._series import (
    CONTEXTS,
    DECISION,
    ERROR,
    FAILED,
    FINE,
    HOST,
    NOT_AFTER,
    OUTCOME,
    RELOADS,
    REQUESTS,
    RESUMED,
    ROLE,
    TLS,
    VERSION,
    WAS_RESUMED,
)

_COUNT = f"{TLS}_count"
_SECONDS_IN_A_DAY = 86400


def tls() -> dict[str, Any]:
    """Return the dashboard."""
    return board(
        "tls",
        "TLS",
        "Whether connections are reused, handshakes resumed, certificates in time.",
        {"Handshakes": _handshakes(), "Failures": _failures(), "Certificates and trust": _certificates()},
    )


def _handshakes() -> list[Any]:
    shares = f"{SERVER}, {FINE}"
    return [
        graph(
            "Handshakes per request",
            "By host. Above 10 % the pool does not work for a host that is asked often.",
            "percentunit",
            (ratio(rate(_COUNT, shares, HOST), rate(f"{REQUESTS}_count", SERVER, HOST)), f"{{{{{HOST}}}}}"),
        ),
        graph(
            "Resumed handshakes",
            "Share of the handshakes that succeeded, by host; 0 where a peer gives no tickets.",
            "percentunit",
            (_resumption(shares), f"{{{{{HOST}}}}}"),
        ),
        graph(
            "Handshakes by version",
            "In a second, those that succeeded.",
            "cps",
            (rate(_COUNT, shares, VERSION, RESUMED), f"TLS {{{{{VERSION}}}}}, resumed {{{{{RESUMED}}}}}"),
            stacked=True,
        ),
        graph(
            "Duration",
            "p95 of full and resumed handshakes.",
            "s",
            (quantile(0.95, TLS, shares, RESUMED), f"p95, resumed {{{{{RESUMED}}}}}"),
            *percentiles(TLS, shares)[::2],
        ),
    ]


def _resumption(shares: str) -> str:
    resumed, done = rate(_COUNT, f"{shares}, {WAS_RESUMED}", HOST), rate(_COUNT, shares, HOST)
    return ratio(f"({resumed} or {done} * 0)", done)


def _failures() -> list[Any]:
    return [
        graph(
            "Failed handshakes by error",
            "In a second.",
            "cps",
            (rate(_COUNT, f"{SERVER}, {FAILED}", HOST, ERROR), f"{{{{{HOST}}}}} {{{{{ERROR}}}}}"),
        ),
        graph(
            "Failed share by host",
            "Of all handshakes.",
            "percentunit",
            (ratio(rate(_COUNT, f"{SERVER}, {FAILED}", HOST), rate(_COUNT, SERVER, HOST)), f"{{{{{HOST}}}}}"),
        ),
    ]


def _certificates() -> list[Any]:
    own, peers = f'{PROCESS}, {ROLE}!=""', f'{SERVER}, {HOST}!=""'
    return [
        graph(
            "Own certificates, days left",
            "By trust decision and role.",
            "suffix: days",
            (_days(own, DECISION, ROLE), f"{{{{{DECISION}}}}} ({{{{{ROLE}}}}})"),
        ),
        graph(
            "Peers' certificates, days left",
            "As last seen in a full handshake, the ten that end first.",
            "suffix: days",
            (f"bottomk(10, {_days(peers, HOST)})", f"{{{{{HOST}}}}}"),
        ),
        graph(
            "Reloads in an hour",
            "By outcome; a rejected one changed nothing.",
            "short",
            (f"sum by ({OUTCOME}) (increase({RELOADS}{{{PROCESS}}}[1h]))", f"{{{{{OUTCOME}}}}}"),
        ),
        graph(
            "SSL contexts",
            "By process. One per trust decision: a line that climbs is a leak.",
            "short",
            (total(CONTEXTS, PROCESS, "instance"), "{{instance}}"),
        ),
    ]


def _days(selector: str, *by: str) -> str:
    return f"(min by ({', '.join(by)}) ({NOT_AFTER}{{{selector}}}) - time()) / {_SECONDS_IN_A_DAY}"

"""Findings from a finished probe run: the same faults as in metrics, by what each request's phases say."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from yarl import URL

from aiohttp_hardened import Phase
from aiohttp_hardened._cli import _limits
from aiohttp_hardened._cli._examine_metrics import show_certificate
from aiohttp_hardened._cli._findings import Findings
from aiohttp_hardened._cli._waterfall import milliseconds
from aiohttp_hardened.telemetry import _names

if TYPE_CHECKING:
    from collections.abc import Iterable

_SECONDS_PER_DAY: Final = 86400
_ENOUGH_REQUESTS: Final = 2
"""Probes come one after the other: of two, the second needs no handshake."""
_FAILING: Final = {
    Phase.QUEUE: "pool_exhausted",
    Phase.DNS: "dns_failing",
    Phase.TCP: "connect_failing",
    Phase.TUNNEL: "proxy_refuses",
    Phase.TLS: "tls_failing",
}
_PLAINTEXT: Final = "plaintext_after_connect"

Record = dict[str, Any]
"""A phase, as ``probe --json`` writes it."""


def examine_probe(document: dict[str, Any], *, now: float) -> Findings:
    """Return what is wrong.

    Args:
        document: What ``probe --json`` wrote.
        now: Unix time.

    Raises:
        KeyError, TypeError, ValueError: That is no such document.
    """
    found = Findings()
    attempts = [attempt for probe in document["probes"] for attempt in probe["attempts"]]
    records: list[Record] = [record for attempt in attempts for record in attempt["phases"]]
    _failures(found, document["probes"])
    _lookups(found, [each for each in records if each["phase"] == Phase.DNS])
    races = [each for each in records if each["phase"] == Phase.TCP]
    for host, own in _by_host(races).items():
        _races(found, host, own)
    _handshakes(found, attempts)
    _certificates(found, records, now)
    return found


def _failures(found: Findings, probes: Iterable[dict[str, Any]]) -> None:
    counts: Counter[tuple[str, Phase, str]] = Counter()
    advice: dict[tuple[str, Phase, str], str] = {}
    for probe in probes:
        failure = probe["failure"]
        if failure is not None:
            key = (str(probe["url"]), Phase(failure["phase"]), str(failure["error_type"]))
            counts[key] += 1
            advice[key] = f"{failure['meaning']}; look at {failure['look_at']}"
    for (url, phase, word), count in counts.items():
        line = f"{url}: {count} request{'' if count == 1 else 's'}"
        if word == _PLAINTEXT:
            found.add("plaintext_before_tls", line, host=url, failed=count)
        else:
            name = _FAILING.get(phase, "request_failing")
            found.add(name, line, error_type=word, advice=advice[url, phase, word], host=url, failed=count)


def _lookups(found: Findings, lookups: list[Record]) -> None:
    stale = sum(each["attributes"].get(_names.DNS_SOURCE) == _names.SOURCE_STALE for each in lookups)
    if stale > _limits.STALE_ANSWERS.value:
        found.add("dns_stale", f"{stale} stale answers were served", stale=stale)
        return
    took: defaultdict[str, list[float]] = defaultdict(list)
    for each in lookups:
        if each["error_type"] is None and not each["cancelled"]:
            took[str(each["attributes"].get(_names.DNS_QUESTION_NAME))].append(float(each["duration_s"]))
    for name, durations in took.items():
        p99 = sorted(durations)[math.ceil(0.99 * len(durations)) - 1]
        if p99 > _limits.SLOW_LOOKUP.value:
            found.add(
                "dns_slow",
                f"{name}: p99 {milliseconds(p99)} of {len(durations)} lookups, above "
                f"{milliseconds(_limits.SLOW_LOOKUP.value)}",
                question=name,
                p99_s=p99,
                lookups=len(durations),
            )


def _races(found: Findings, host: str, races: list[Record]) -> None:
    """Judge the races that were won; a lost one is a failure already."""
    won = [each for each in races if each["error_type"] is None and not each["cancelled"]]
    waiting = [each for each in won if each["events"] and each["duration_s"] > _limits.HAPPY_EYEBALLS.low]
    addresses = sorted(
        {str(event["attributes"].get(_names.NETWORK_PEER_ADDRESS)) for each in waiting for event in each["events"]}
    )
    if waiting:
        found.add(
            "dead_address",
            f"{host}: {len(waiting)} of {len(won)} connects waited for {', '.join(addresses)}",
            host=host,
            connects=len(won),
            overtaken=len(waiting),
            addresses=addresses,
        )
    resent = [int(each["attributes"].get(_names.TCP_SYN_RETRANSMITS, 0)) for each in won]
    waited = sum(each > 0 for each in resent)
    if waited and not waiting and waited / len(won) > _limits.RESENT_SHARE.value:
        found.add(
            "syn_retransmissions",
            f"{host}: {waited} of {len(won)} connects had a SYN sent again",
            host=host,
            connects=len(won),
            waited=waited,
            resent_segments=sum(resent),
        )


def _handshakes(found: Findings, attempts: Iterable[dict[str, Any]]) -> None:
    """Judge the handshakes of each origin beside the requests that were answered there."""
    answered: Counter[str] = Counter()
    made: defaultdict[str, list[Record]] = defaultdict(list)
    for attempt in attempts:
        if attempt["status"] is not None:
            origin = str(URL(attempt["url"]).origin())
            answered[origin] += 1
            # Through an https proxy the target's handshake is the last one.
            good = [each for each in attempt["phases"] if each["phase"] == Phase.TLS and each["error_type"] is None]
            made[origin] += good[-1:]
    for origin, handshakes in made.items():
        _slow_handshakes(found, origin, handshakes)
        avoidable, requests = len(handshakes) - 1, answered[origin]
        if requests < _ENOUGH_REQUESTS:
            continue
        if avoidable / requests > _limits.HANDSHAKES_PER_REQUEST.value:
            found.add(
                "handshakes_per_request",
                f"{origin}: {len(handshakes)} handshakes for {requests} requests, one after the other",
                host=origin,
                handshakes=len(handshakes),
                avoidable=avoidable,
                requests=requests,
            )
        resumed = sum(bool(each["attributes"].get(_names.TLS_RESUMED)) for each in handshakes)
        if avoidable >= _limits.FEWEST_RESUMABLE.value and resumed / avoidable < _limits.RESUMED_SHARE.value:
            found.add(
                "resumption_lost",
                f"{origin}: {resumed} of {avoidable} handshakes that could resume did ({resumed / avoidable:.0%})",
                host=origin,
                resumed=resumed,
                resumable=avoidable,
            )


def _slow_handshakes(found: Findings, origin: str, handshakes: list[Record]) -> None:
    took = sorted(float(each["duration_s"]) for each in handshakes)
    if took and took[len(took) // 2] > _limits.SLOW_HANDSHAKE.value:
        median = took[len(took) // 2]
        line = f"{origin}: median {milliseconds(median)} of {len(took)} handshakes"
        found.add("tls_slow", line, host=origin, median_s=median, handshakes=len(took))


def _certificates(found: Findings, records: Iterable[Record], now: float) -> None:
    ends: dict[str, float] = {}
    for each in records:
        not_after = each["attributes"].get(_names.TLS_SERVER_NOT_AFTER)
        if not_after is not None:
            host = str(each["attributes"].get(_names.SERVER_ADDRESS) or each["server_address"])
            ends[host] = datetime.fromisoformat(not_after).timestamp()
    for host, not_after in ends.items():
        days = (not_after - now) / _SECONDS_PER_DAY
        if days < _limits.DAYS_LEFT.value:
            show_certificate(found, host, not_after, days)


def _by_host(records: Iterable[Record]) -> dict[str, list[Record]]:
    groups: defaultdict[str, list[Record]] = defaultdict(list)
    for each in records:
        groups[f"{each['server_address']}:{each['server_port']}"].append(each)
    return groups

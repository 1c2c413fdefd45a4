"""Findings from metrics: each known failure by the figures that show it, and no figure for two of them."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from aiohttp_hardened import Phase
from aiohttp_hardened._cli import _limits
from aiohttp_hardened._cli._exposition import Distribution
from aiohttp_hardened._cli._failure import Failure
from aiohttp_hardened._cli._findings import Findings
from aiohttp_hardened._cli._waterfall import milliseconds
from aiohttp_hardened.telemetry import _names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp_hardened._cli._exposition import Scrape, Series
    from aiohttp_hardened._cli._limits import Cluster

_SECONDS_PER_DAY: Final = 86400
_REJECTED: Final = "client_certificate_rejected"
_BEFORE_A_CONNECTION: Final = tuple(
    f"{phase}_" for phase in (Phase.QUEUE, Phase.DNS, Phase.TCP, Phase.TUNNEL, Phase.TLS)
)
_SETUP_FAILURES: Final = {Phase.DNS: "dns_failing", Phase.TCP: "connect_failing", Phase.TUNNEL: "proxy_refuses"}
_SETTINGS: Final = {
    "or try another --resolver": "dns.nameservers",
    "or --resolver": "dns.nameservers",
    "--proxy http://USER:PASSWORD@HOST:PORT": "those in the proxy's URL",
    "--ca-file": "tls.ca_files",
    "--client-cert": "tls.client_cert",
}
_SEEN_ELSEWHERE: Final = "plaintext_after_connect"


def examine_metrics(scrape: Scrape, *, before: Scrape | None, now: float) -> Findings:
    """Return what is wrong.

    Args:
        scrape: What the endpoint says.
        before: What it said earlier: only what came since is judged. ``None``: all since the process started.
        now: Unix time.
    """
    found = Findings()
    recent = scrape if before is None else scrape.since(before)
    _executor(found, scrape, before)
    _lookups(found, recent)
    _setups(found, recent)
    for host, connects in _by_host(recent.series(_names.METRIC_TCP_DURATION)).items():
        _connects(found, host, _sum(_good(connects)), _total(_of(host, recent, _names.METRIC_SYN_RETRANSMITS)))
    _queue(found, recent)
    for host in _by_host(recent.series(_names.METRIC_TLS_DURATION)):
        _handshakes(found, host, recent, before)
    _certificates(found, scrape, now)
    _contexts(found, scrape, before)
    _counters(found, recent)
    return found


def _executor(found: Findings, scrape: Scrape, before: Scrape | None) -> None:
    looks = [each for each in (before, scrape) if each is not None]
    queued = min(_total(each.series(_names.METRIC_EXECUTOR_QUEUED)) for each in looks)
    if queued > _limits.QUEUED_JOBS.value:
        busy = _total(scrape.series(_names.METRIC_EXECUTOR_BUSY))
        slowest = _sum(_good(scrape.series(_names.METRIC_DNS_DURATION)))
        lookups = f"; p99 of DNS lookups {milliseconds(slowest.quantile(0.99))}" if slowest.count else ""
        found.add(
            "default_executor_full",
            f"{queued:.0f} jobs wait, {busy:.0f} threads are busy{lookups}",
            queued=queued,
            busy=busy,
        )


def _lookups(found: Findings, scrape: Scrape) -> None:
    stale = sum(
        each.value
        for each in scrape.series(_names.METRIC_DNS_CACHE_LOOKUPS)
        if each.get(_names.DNS_SOURCE) == _names.SOURCE_STALE
    )
    if stale > _limits.STALE_ANSWERS.value:
        found.add("dns_stale", f"{stale:.0f} stale answers were served", stale=stale)
    if "default_executor_full" in found:
        return  # lookups that wait for a thread are slow for that reason
    by_name = _grouped(_good(scrape.series(_names.METRIC_DNS_DURATION)), _names.DNS_QUESTION_NAME)
    for name, lookups in by_name.items():
        took = _sum(lookups)
        p99 = took.quantile(0.99)
        if p99 > _limits.SLOW_LOOKUP.value:
            found.add(
                "dns_slow",
                f"{name}: p99 {milliseconds(p99)} of {took.count:.0f} lookups, above "
                f"{milliseconds(_limits.SLOW_LOOKUP.value)}",
                question=name,
                p99_s=p99,
                lookups=took.count,
            )


def _setups(found: Findings, scrape: Scrape) -> None:
    """Name what failed on the way to a connection; handshakes are judged by their own metric."""
    for host, setups in _by_host(scrape.series(_names.METRIC_SETUP_DURATION)).items():
        for word, failed in _grouped(setups, _names.ERROR_TYPE).items():
            phase, _, error_type = word.partition("_")
            name = _SETUP_FAILURES.get(Phase(phase)) if phase in list(Phase) else None
            waited_for_a_thread = name == "dns_failing" and "default_executor_full" in found
            if name is not None and error_type != _SEEN_ELSEWHERE and not waited_for_a_thread:
                _failures(found, name, host, Failure(Phase(phase), error_type), _total(failed), _total(setups))
            elif error_type == _SEEN_ELSEWHERE and _total(failed) > _limits.PLAINTEXT_BYTES.value:
                found.add("plaintext_before_tls", f"{host}: {_total(failed):.0f} tunnels", host=host)


def _failures(found: Findings, name: str, host: str, failure: Failure, failed: float, of: float) -> None:
    if of and failed / of > _limits.FAILED_SHARE.value:
        found.add(
            name,
            f"{host}: {failed:.0f} of {of:.0f} ({failed / of:.1%})",
            error_type=failure.word,
            advice=_in_settings(f"{failure.meaning}; look at {failure.look_at}"),
            host=host,
            failed=failed,
            of=of,
        )


def _in_settings(advice: str) -> str:
    """Return advice for a program, where that for a probe names the probe's options."""
    for option, setting in _SETTINGS.items():
        advice = advice.replace(option, setting)
    return advice


def _connects(found: Findings, host: str, took: Distribution, resent: float) -> None:
    overtaken = _standing_out(took, _limits.HAPPY_EYEBALLS)
    if overtaken and overtaken / took.count > _limits.OVERTAKEN_SHARE.value:
        found.add(
            "dead_address",
            f"{host}: {overtaken:.0f} of {took.count:.0f} connects took 0.24 to 0.3 s",
            host=host,
            connects=took.count,
            overtaken=overtaken,
        )
    waited = sum(_standing_out(took, each) for each in _limits.SYN_RETRANSMISSIONS)
    if waited and waited / took.count > _limits.RESENT_SHARE.value:
        found.add(
            "syn_retransmissions",
            f"{host}: {waited:.0f} of {took.count:.0f} connects took about 1 or 3 s; {resent:.0f} SYN segments were "
            "counted as sent again (Linux counts them)",
            host=host,
            connects=took.count,
            waited=waited,
            resent_segments=resent,
        )


def _standing_out(took: Distribution, cluster: Cluster) -> float:
    """Return how many values lie in a cluster; 0 where its neighbours hold as many, or edges are missing."""
    inside = took.between(cluster.low, cluster.high) or 0.0
    beside = [took.between(cluster.before, cluster.low), took.between(cluster.high, cluster.after)]
    return inside if inside > sum(each or 0.0 for each in beside) else 0.0


def _queue(found: Findings, scrape: Scrape) -> None:
    for host, waits in _by_host(scrape.series(_names.METRIC_TIME_IN_QUEUE)).items():
        gave_up = _total(each for each in waits if each.get(_names.ERROR_TYPE))
        if gave_up > _limits.QUEUE_TIMEOUTS.value:
            found.add(
                "pool_exhausted",
                f"{host}: {gave_up:.0f} of {_total(waits):.0f} that waited",
                host=host,
                timed_out=gave_up,
                waited=_total(waits),
            )


def _handshakes(found: Findings, host: str, scrape: Scrape, before: Scrape | None) -> None:
    handshakes = _of(host, scrape, _names.METRIC_TLS_DURATION)
    requests = _of(host, scrape, _names.METRIC_REQUEST_DURATION)
    good = _good(handshakes)
    failed = {word: _total(each) for word, each in _grouped(handshakes, _names.ERROR_TYPE).items() if word}
    # Under TLS 1.3 a server refuses a client certificate after a handshake that went well.
    refused = _total(each for each in requests if each.get(_names.ERROR_TYPE) == f"{Phase.TLS}_{_REJECTED}")
    failed[_REJECTED] = max(refused, failed.get(_REJECTED, 0.0))
    for word, count in failed.items():
        _failures(found, "tls_failing", host, Failure(Phase.TLS, word), count, _total(handshakes))
    took = _sum(good)
    if took.quantile(0.5) > _limits.SLOW_HANDSHAKE.value:
        found.add(
            "tls_slow",
            f"{host}: median {milliseconds(took.quantile(0.5))} of {took.count:.0f} handshakes",
            host=host,
            median_s=took.quantile(0.5),
            handshakes=took.count,
        )
    opened = _total(_of(host, scrape, _names.METRIC_OPEN_CONNECTIONS)) - (
        0.0 if before is None else _total(_of(host, before, _names.METRIC_OPEN_CONNECTIONS))
    )
    _pooling(found, host, good, requests, opened)


def _pooling(found: Findings, host: str, handshakes: list[Series], requests: list[Series], opened: float) -> None:
    """Judge the handshakes that a pool would have saved.

    Not those that fill it (their connections are open, or could not be resumed yet), nor
    those after requests that failed, for a failure closes its connection.
    """
    lost = _total(each for each in requests if _closed_its_connection(each.get(_names.ERROR_TYPE)))
    served = _total(each for each in requests if not each.get(_names.ERROR_TYPE).startswith(_BEFORE_A_CONNECTION))
    resumed = _total(each for each in handshakes if each.get(_names.TLS_RESUMED) == "true")
    full = _total(handshakes) - resumed
    avoidable = _total(handshakes) - lost - max(opened, min(full, _limits.FILLING.value))
    if served < _limits.FEWEST_REQUESTS.value:
        return
    if avoidable / served > _limits.HANDSHAKES_PER_REQUEST.value:
        found.add(
            "handshakes_per_request",
            f"{host}: {_total(handshakes):.0f} handshakes, {avoidable:.0f} avoidable, for {served:.0f} requests",
            host=host,
            handshakes=_total(handshakes),
            avoidable=avoidable,
            requests=served,
        )
    if avoidable >= _limits.FEWEST_RESUMABLE.value and resumed / avoidable < _limits.RESUMED_SHARE.value:
        found.add(
            "resumption_lost",
            f"{host}: {resumed:.0f} of {avoidable:.0f} handshakes that could resume did ({resumed / avoidable:.0%})",
            host=host,
            resumed=resumed,
            resumable=avoidable,
        )


def _closed_its_connection(error_type: str) -> bool:
    if error_type == f"{Phase.TLS}_{_REJECTED}":
        return True
    return bool(error_type) and not error_type.isdigit() and not error_type.startswith(_BEFORE_A_CONNECTION)


def _certificates(found: Findings, scrape: Scrape, now: float) -> None:
    for each in scrape.series(_names.METRIC_NOT_AFTER):
        days = (each.value - now) / _SECONDS_PER_DAY
        if days < _limits.DAYS_LEFT.value:
            own = each.get(_names.TLS_NAME)
            whose = f"own {own} ({each.get(_names.TLS_ROLE)})" if own else each.get(_names.SERVER_ADDRESS)
            show_certificate(found, whose, each.value, days)


def show_certificate(found: Findings, whose: str, not_after: float, days: float) -> None:
    """Add a certificate that ends soon, or has ended.

    Args:
        found: Where.
        whose: The host, or the trust decision.
        not_after: Unix time.
        days: Until then.
    """
    ends = f"ends in {days:.1f} days" if days > 0 else f"ended {-days:.1f} days ago"
    date = datetime.fromtimestamp(not_after, UTC).strftime("%Y-%m-%d %H:%M UTC")
    found.add("certificate_ends", f"{whose}: {ends}, {date}", whose=whose, not_after=not_after, days_left=days)


def _contexts(found: Findings, scrape: Scrape, before: Scrape | None) -> None:
    earlier = {} if before is None else {frozenset(each.attributes.items()): each.value for each in _live(before)}
    for each in _live(scrape):
        grown = each.value - earlier.get(frozenset(each.attributes.items()), each.value)
        if grown > _limits.CONTEXT_GROWTH.value or each.value > _limits.CONTEXTS.value:
            more = f", {grown:.0f} more than before" if grown > 0 else ""
            found.add("contexts_growing", f"{each.value:.0f} live contexts{more}", contexts=each.value, grown=grown)


def _live(scrape: Scrape) -> list[Series]:
    return scrape.series(_names.METRIC_SSL_CONTEXTS)


def _counters(found: Findings, scrape: Scrape) -> None:
    for each in scrape.series(_names.METRIC_RELOADS):
        if each.get(_names.OUTCOME) == "rejected" and each.value > _limits.REJECTED_RELOADS.value:
            name = each.get(_names.TLS_NAME)
            found.add("reload_rejected", f"{name}: {each.value:.0f} rejected", tls_name=name, rejected=each.value)
    errors = _total(scrape.series(_names.METRIC_TELEMETRY_ERRORS))
    if errors > _limits.TELEMETRY_ERRORS.value:
        found.add("telemetry_errors", f"{errors:.0f} contained failures of hooks", errors=errors)


def _good(series: Iterable[Series]) -> list[Series]:
    return [each for each in series if not each.get(_names.ERROR_TYPE)]


def _total(series: Iterable[Series]) -> float:
    return sum(each.value for each in series)


def _sum(series: Iterable[Series]) -> Distribution:
    first, *others = [each.distribution for each in series] or [Distribution({})]
    return sum(others, first)


def _grouped(series: Iterable[Series], key: str) -> dict[str, list[Series]]:
    groups: defaultdict[str, list[Series]] = defaultdict(list)
    for each in series:
        groups[each.get(key)].append(each)
    return groups


def _host(series: Series) -> str:
    port = series.get(_names.SERVER_PORT)
    address = series.get(_names.SERVER_ADDRESS)
    shown = f"[{address}]" if ":" in address else address
    return f"{shown}:{port}" if port else shown


def _by_host(series: Iterable[Series]) -> dict[str, list[Series]]:
    groups: defaultdict[str, list[Series]] = defaultdict(list)
    for each in series:
        groups[_host(each)].append(each)
    return groups


def _of(host: str, scrape: Scrape, metric: str) -> list[Series]:
    return _by_host(scrape.series(metric)).get(host, [])

"""Every threshold of the doctor stands where its table says: at it nothing is named, above it one finding is."""

from __future__ import annotations

import math
from typing import Any

import pytest

from aiohttp_hardened._cli import _limits
from aiohttp_hardened._cli._examine_metrics import examine_metrics
from aiohttp_hardened._cli._exposition import Distribution, parse, plain, spellings
from aiohttp_hardened.telemetry import _names

NOW = 1_800_000_000.0
DAY = 86400.0
EDGES = [*_names.CONNECT_EDGES, math.inf]


def line(name: str, value: float, /, **labels: Any) -> str:
    shown = ",".join(f'{key}="{each}"' for key, each in labels.items())
    return f"{name}{{{shown}}} {value}\n"


def histogram(name: str, values: list[float], /, **labels: Any) -> str:
    labels = {"server_address": "x.test", "server_port": 443} | labels
    return "".join(
        line(
            f"{name}_seconds_bucket",
            sum(value <= edge for value in values),
            **labels,
            le=edge if edge < 1e9 else "+Inf",
        )
        for edge in EDGES
    )


def dns(*values: float) -> str:
    return histogram("dns_lookup_duration", list(values), dns_question_name="x.test")


def connects(*values: float) -> str:
    return histogram("aiohttp_client_tcp_connect_duration", list(values))


def setups(good: int, failed: int, error_type: str) -> str:
    name = "aiohttp_client_connection_setup_duration"
    return histogram(name, [0.01] * good) + histogram(name, [0.01] * failed, error_type=error_type)


def handshakes(*, full: int = 0, resumed: int = 0, seconds: float = 0.003) -> str:
    name = "aiohttp_client_tls_handshake_duration"
    return histogram(name, [seconds] * full, tls_resumed="false") + histogram(
        name, [seconds] * resumed, tls_resumed="true"
    )


def mixed(fast: int, near: int, slow: int) -> str:
    return histogram("aiohttp_client_tls_handshake_duration", [0.003] * fast + [1.1] * near + [4.0] * slow)


def requests(count: int, **labels: Any) -> str:
    return histogram("http_client_request_duration", [0.01] * count, **labels)


def opened(count: int) -> str:
    return line("http_client_open_connections", count, server_address="x.test", server_port=443)


def found(text: str, *, before: str | None = None) -> list[str]:
    earlier = None if before is None else parse(before)
    return [each.name for each in examine_metrics(parse(text), before=earlier, now=NOW).all()]


LIMITS: dict[str, tuple[str, str, list[str]]] = {
    # All below it and near it; 11 of 1,000 above it.
    "SLOW_LOOKUP": (dns(*[0.049] * 1000), dns(*[0.001] * 989, *[0.06] * 11), ["dns_slow"]),
    "FAILED_SHARE": (
        setups(990, 10, "tcp_connection_refused"),
        setups(989, 11, "tcp_connection_refused"),
        ["connect_failing"],
    ),
    "OVERTAKEN_SHARE": (
        connects(*[0.001] * 9990, *[0.27] * 10),
        connects(*[0.001] * 9989, *[0.27] * 11),
        ["dead_address"],
    ),
    "RESENT_SHARE": (
        connects(*[0.001] * 990, *[1.01] * 5, *[3.1] * 5),
        connects(*[0.001] * 989, *[1.01] * 6, *[3.1] * 5),
        ["syn_retransmissions"],
    ),
    # The median is interpolated to 0.99 s and 1.01 s.
    "SLOW_HANDSHAKE": (mixed(41, 30, 29), mixed(39, 30, 31), ["tls_slow"]),
    "HANDSHAKES_PER_REQUEST": (
        handshakes(full=1, resumed=10) + requests(100),
        handshakes(full=1, resumed=11) + requests(100),
        ["handshakes_per_request"],
    ),
    "FEWEST_REQUESTS": (
        handshakes(full=1, resumed=8) + requests(9),
        handshakes(full=1, resumed=9) + requests(10),
        ["handshakes_per_request"],
    ),
    "FILLING": (
        handshakes(full=10) + requests(10),
        handshakes(full=12) + requests(12),
        ["handshakes_per_request"],
    ),
    "FEWEST_RESUMABLE": (
        handshakes(full=19) + requests(1000),
        handshakes(full=20) + requests(1000),
        ["resumption_lost"],
    ),
    "RESUMED_SHARE": (
        handshakes(full=20, resumed=10) + requests(1000),
        handshakes(full=21, resumed=10) + requests(1000),
        ["resumption_lost"],
    ),
    "DAYS_LEFT": (
        line("aiohttp_client_tls_certificate_not_after_seconds", NOW + 7 * DAY, server_address="x.test"),
        line("aiohttp_client_tls_certificate_not_after_seconds", NOW + 7 * DAY - 60, server_address="x.test"),
        ["certificate_ends"],
    ),
    "QUEUE_TIMEOUTS": (
        histogram("http_client_request_time_in_queue", [9.0] * 5),
        histogram("http_client_request_time_in_queue", [10.0], error_type="timed_out"),
        ["pool_exhausted"],
    ),
    "STALE_ANSWERS": (
        line("aiohttp_client_dns_cache_lookups_total", 0, aiohttp_client_dns_source="stale"),
        line("aiohttp_client_dns_cache_lookups_total", 1, aiohttp_client_dns_source="stale"),
        ["dns_stale"],
    ),
    "REJECTED_RELOADS": (
        line("aiohttp_client_tls_reloads_total", 0, aiohttp_tls_name="t", outcome="rejected")
        + line("aiohttp_client_tls_reloads_total", 5, aiohttp_tls_name="t", outcome="applied"),
        line("aiohttp_client_tls_reloads_total", 1, aiohttp_tls_name="t", outcome="rejected"),
        ["reload_rejected"],
    ),
    "PLAINTEXT_BYTES": (
        setups(1000, 0, "tunnel_plaintext_after_connect"),
        setups(1000, 1, "tunnel_plaintext_after_connect"),
        ["plaintext_before_tls"],
    ),
    "TELEMETRY_ERRORS": (
        line("aiohttp_client_telemetry_errors_total", 0),
        line("aiohttp_client_telemetry_errors_total", 1),
        ["telemetry_errors"],
    ),
    "QUEUED_JOBS": (
        line("aiohttp_client_executor_queued", 0) + line("aiohttp_client_executor_busy", 6),
        line("aiohttp_client_executor_queued", 1) + line("aiohttp_client_executor_busy", 6),
        ["default_executor_full"],
    ),
    "CONTEXTS": (
        line("aiohttp_client_ssl_contexts", 16),
        line("aiohttp_client_ssl_contexts", 17),
        ["contexts_growing"],
    ),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit(limit: str) -> None:
    """At the limit nothing is named; above it exactly that finding is."""
    fine, too_much, names = LIMITS[limit]
    assert [] == found(fine)
    assert names == found(too_much)


def test_every_limit_is_tested() -> None:
    """No threshold of the table is left out; growth needs two looks and has a test of its own."""
    names = {name for name, value in vars(_limits).items() if isinstance(value, _limits.Limit)}
    assert names == {*LIMITS, "CONTEXT_GROWTH"}
    assert len(names) == len(_limits.ALL)


def test_contexts_that_grow() -> None:
    """One context more between two looks is a trust decision's first use; two are growth."""
    two, three, four = (line("aiohttp_client_ssl_contexts", count) for count in (2, 3, 4))
    assert [] == found(three, before=two)
    assert ["contexts_growing"] == found(four, before=two)
    assert [] == found(two, before=four)


def test_two_looks_judge_what_came_between() -> None:
    """An old fault is not named; what is new is, also when its series was born or its process began anew."""
    name = "aiohttp_client_tls_reloads_total"
    labels = {"aiohttp_tls_name": "t", "outcome": "rejected"}
    nothing = line("aiohttp_client_ssl_contexts", 1)
    assert [] == found(line(name, 3, **labels), before=line(name, 3, **labels))
    assert ["reload_rejected"] == found(line(name, 4, **labels), before=line(name, 3, **labels))
    assert ["reload_rejected"] == found(line(name, 1, **labels), before=nothing)
    assert ["reload_rejected"] == found(line(name, 1, **labels), before=line(name, 3, **labels))
    assert [] == found(dns(0.3), before=dns(0.3))
    assert ["dns_slow"] == found(dns(0.3, 0.3), before=dns(0.3))
    assert ["dns_slow"] == found(dns(0.3), before=dns(*[0.001] * 500))


def test_jobs_must_wait_at_both_looks() -> None:
    """A burst that one look happens to see is no full executor."""
    none, some = (line("aiohttp_client_executor_queued", count) for count in (0, 5))
    assert [] == found(some, before=none)
    assert [] == found(none, before=some)
    assert ["default_executor_full"] == found(some, before=some)


def test_slow_lookups_are_the_executors_while_it_is_full() -> None:
    """Lookups that wait for a thread are one finding, not two."""
    text = dns(0.9, 0.9) + line("aiohttp_client_executor_queued", 3)
    assert ["default_executor_full"] == found(text)


@pytest.mark.parametrize("beside", [0.22, 0.4])
def test_a_slow_host_is_no_cluster(beside: float) -> None:
    """Connects on both sides of 0.25 s, as on a far and shaky way, are no dead address."""
    assert [] == found(connects(0.27, beside))
    assert ["dead_address"] == found(connects(0.27, 0.27, beside))


@pytest.mark.parametrize(("inside", "beside"), [(1.01, 0.7), (1.01, 1.5), (3.1, 2.5), (3.1, 4.0)])
def test_a_slow_peer_is_no_retransmission(inside: float, beside: float) -> None:
    """Connects on both sides of 1 s or 3 s are no lost SYN."""
    assert [] == found(connects(inside, beside))
    assert ["syn_retransmissions"] == found(connects(inside, inside, beside))


def test_open_connections_are_no_waste() -> None:
    """A pool that filled at once has as many connections as handshakes."""
    text = handshakes(full=50) + requests(50)
    assert [] == found(text + opened(50))
    assert ["handshakes_per_request", "resumption_lost"] == found(text + opened(0))


def test_growth_of_the_pool_is_counted_between_two_looks() -> None:
    """Connections that were open before say nothing of the handshakes since."""
    before = handshakes(full=50) + requests(50) + opened(50)
    after = handshakes(full=50, resumed=30) + requests(80) + opened(50)
    assert ["handshakes_per_request"] == found(after, before=before)
    assert [] == found(handshakes(full=50, resumed=30) + requests(80) + opened(80), before=before)


def test_a_failure_closes_its_connection() -> None:
    """The handshakes after failed requests are not blamed on the pool; a bad status closes nothing."""
    text = handshakes(full=1, resumed=20) + requests(60)
    assert ["handshakes_per_request"] == found(text)
    assert [] == found(text + requests(20, error_type="TimeoutError"))
    assert ["handshakes_per_request"] == found(text + requests(20, error_type="503"))


def test_hosts_are_judged_apart() -> None:
    """A busy host does not hide a bad one."""
    bad = histogram("aiohttp_client_tcp_connect_duration", [0.27], server_address="bad.test")
    findings = examine_metrics(parse(connects(*[0.001] * 5000) + bad), before=None, now=NOW).all()
    assert [["bad.test:443: 1 of 1 connects took 0.24 to 0.3 s"]] == [each.evidence for each in findings]


def test_quantiles_are_those_of_promql() -> None:
    """Linear inside a bucket, from 0 in the first; the last finite edge above it; NaN without values."""
    took = Distribution({0.1: 2.0, 0.2: 2.0, 0.5: 10.0, math.inf: 11.0})
    assert 0.05 == took.quantile(1 / 11)
    assert pytest.approx(0.2 + 0.3 * (5.5 - 2) / 8) == took.quantile(0.5)
    assert 0.5 == took.quantile(0.99)
    assert math.isnan(Distribution({0.1: 0.0, math.inf: 0.0}).quantile(0.5))
    assert math.isnan(Distribution({}).quantile(0.5))


def test_other_edges_are_no_findings() -> None:
    """A View with other buckets cannot show a cluster, and is not guessed at."""
    text = "".join(
        line("aiohttp_client_tcp_connect_duration_seconds_bucket", count, server_address="x.test", le=edge)
        for edge, count in (("0.1", 0), ("0.5", 9), ("+Inf", 9))
    )
    assert [] == found(text)


@pytest.mark.parametrize("metric", _names.METRICS, ids=lambda metric: metric.name)
def test_every_road_is_understood(metric: _names.Metric) -> None:
    """The exporter's spelling and each of OTLP's translations are one metric, its attributes too."""
    unit = "_seconds" if metric.unit == "s" else ""
    total = "_total" if metric.kind == "counter" else ""
    part = "_bucket" if metric.kind == "histogram" else ""
    labels = {plain(key): "a" for key in metric.attributes} | ({"le": "+Inf"} if part else {})
    dotted = ",".join(f'"{key}"="a"' for key in metric.attributes) + (',le="+Inf"' if part else "")
    shapes = [
        line(plain(metric.name) + unit + total + part, 3, **labels, otel_scope_name="aiohttp_hardened"),
        line(plain(metric.name) + part, 3, **labels, job="a"),
        f'{{"{metric.name}{unit}{total}{part}"{"," if dotted.strip(",") else ""}{dotted.strip(",")}}} 3\n',
    ]
    for shape in shapes:
        (point,) = parse(shape).series(metric.name)
        assert 3 == point.value
        assert all("a" == point.get(key) for key in metric.attributes)
    assert len(set(spellings(metric))) == len(spellings(metric))


def test_workers_are_judged_together() -> None:
    """Two processes behind one endpoint count as one, and edges are numbers, however they are written."""
    one = histogram("dns_lookup_duration", [0.001] * 99, dns_question_name="x.test", instance="a")
    two = histogram("dns_lookup_duration", [0.3], dns_question_name="x.test", instance="b").replace(
        'le="1.2"', 'le="1.20"'
    )
    assert [] == found(one + two)

"""Each alert fires under its fault, and no other does."""

from __future__ import annotations

import functools
import subprocess

import pytest
import yaml

from aiohttp_hardened.telemetry._names import (
    METRIC_CONNECTION_DURATION,
    METRIC_DNS_CACHE_LOOKUPS,
    METRIC_DNS_DURATION,
    METRIC_NOT_AFTER,
    METRIC_RELOADS,
    METRIC_REQUEST_DURATION,
    METRIC_SETUP_DURATION,
    METRIC_SSL_CONTEXTS,
    METRIC_TCP_DURATION,
    METRIC_TELEMETRY_ERRORS,
    METRIC_TIME_IN_QUEUE,
    METRIC_TLS_DURATION,
)
from tests.dashboards._promtool import (
    NAME,
    PROCESS,
    PROMTOOL,
    RULES,
    SERVER,
    Group,
    Series,
    failures,
    firing,
    group,
    histogram,
    needs_promtool,
    series,
)

pytestmark = needs_promtool

DAY = 86400
BORN = "_x20 {1}x40"
"""A series that is born after 20 minutes with what it then has for good: its first failure."""
RESET = "{0}+{1}x25 {0}+{1}x34"
"""A counter that begins anew after 25 minutes: the process was restarted."""
STOPPED = "{0}+{1}x10 {1}x50"
"""A counter that stops to grow: no traffic."""
FULL = {**SERVER, "tls_protocol_version": "1.3", "tls_resumed": "false"}
RESUMED = {**FULL, "tls_resumed": "true"}


def tls(word: str, count: float, of: str = BORN) -> Series:
    """Return handshakes that fail, beside good ones on kept connections."""
    return healthy() | histogram(METRIC_TLS_DURATION, {**SERVER, "error_type": word}, {0.02: count}, of=of)


def dns(word: str, count: float, of: str = BORN) -> Series:
    """Return lookups that fail, beside good ones."""
    return healthy() | histogram(METRIC_DNS_DURATION, {**NAME, "error_type": word}, {0.02: count}, of=of)


def tcp(recorded: dict[float, float], of: str = "{0}+{1}x60", le: str = "{}") -> Series:
    """Return races that take so long."""
    return healthy() | histogram(METRIC_TCP_DURATION, {**SERVER, "network_type": "ipv4"}, recorded, of=of, le=le)


def requests(count: float, handshakes: float, of: str = "{0}+{1}x60") -> Series:
    """Return requests in a minute, and handshakes."""
    labels = {**SERVER, "http_request_method": "GET", "http_response_status_code": "200"}
    asked = histogram(METRIC_REQUEST_DURATION, labels, {0.01: count}, of=of)
    return asked | histogram(METRIC_TLS_DURATION, FULL, {0.005: handshakes}, of=of)


def resumed(before: float, after: float, *, at: int = 100) -> Series:
    """Return ten handshakes in a minute, of which so many are resumed up to and from a minute."""
    return {
        **_counted(FULL, f"0+{10 - before}x{at} {(10 - before) * at}+{10 - after}x60"),
        **_counted(RESUMED, f"0+{before}x{at} {before * at}+{after}x60"),
    }


def _counted(labels: dict[str, str], values: str) -> Series:
    (count,) = (name for name in histogram(METRIC_TLS_DURATION, labels, {}) if "_count{" in name)
    return {count: values}


def healthy(of: str = "{0}+{1}x180") -> Series:
    """Return what a busy process shows when all is well."""
    found: Series = {}
    labels = {**SERVER, "http_request_method": "GET", "http_response_status_code": "200"}
    found |= histogram(METRIC_REQUEST_DURATION, labels, {0.02: 590, 0.4: 10}, of=of)
    found |= histogram(METRIC_DNS_DURATION, NAME, {0.002: 2, 0.02: 0.2}, of=of)
    found |= histogram(METRIC_TCP_DURATION, {**SERVER, "network_type": "ipv4"}, {0.001: 3, 0.2: 0.1}, of=of)
    found |= histogram(METRIC_TLS_DURATION, FULL, {0.005: 2}, of=of)
    found |= histogram(METRIC_TLS_DURATION, RESUMED, {0.002: 2}, of=of)
    found |= histogram(METRIC_SETUP_DURATION, {**SERVER, "url_scheme": "https"}, {0.008: 4}, of=of)
    found |= histogram(METRIC_TIME_IN_QUEUE, SERVER, {0.01: 1}, of=of)
    found |= histogram(METRIC_CONNECTION_DURATION, SERVER, {300: 4}, of=of)
    found |= series(METRIC_DNS_CACHE_LOOKUPS, "0+600x180", aiohttp_client_dns_source="cache")
    found |= series(METRIC_DNS_CACHE_LOOKUPS, "0x180", aiohttp_client_dns_source="stale")
    for outcome, values in (("applied", "0x30 1x150"), ("unchanged", "0+1x180"), ("rejected", "0x180")):
        found |= series(METRIC_RELOADS, values, aiohttp_tls_name="own", outcome=outcome)
    found |= series(METRIC_SSL_CONTEXTS, "0x2 3x30 5x3 3x145")
    found |= series(METRIC_TELEMETRY_ERRORS, "0x180")
    found |= series(METRIC_NOT_AFTER, f"{90 * DAY}x180", server_address="x.test")
    return found | series(METRIC_NOT_AFTER, f"{8 * DAY + 10800}x180", aiohttp_tls_name="own", aiohttp_tls_role="client")


FIRING: dict[str, tuple[str, Series]] = {
    "slow name server": ("AiohttpSlowDNS", healthy() | histogram(METRIC_DNS_DURATION, NAME, {0.2: 2, 0.002: 2})),
    "slow lookups, now and then": ("AiohttpSlowDNS", histogram(METRIC_DNS_DURATION, NAME, {0.002: 0.4, 0.2: 0.1})),
    "slow lookups, born with all they have": (
        "AiohttpSlowDNS",
        histogram(METRIC_DNS_DURATION, NAME, {0.2: 5}, of=BORN),
    ),
    "no such name, once": ("AiohttpDNSFailures", dns("host_not_found", 1 + 1)),
    "no such name, the first lookup ever": (
        "AiohttpDNSFailures",
        histogram(METRIC_DNS_DURATION, {**NAME, "error_type": "host_not_found"}, {0.02: 1}, of=BORN),
    ),
    "name server fails": ("AiohttpDNSFailures", dns("server_failure", 3)),
    "name server fails, restarted": ("AiohttpDNSFailures", dns("server_failure", 1, of=RESET)),
    "stale answers": (
        "AiohttpStaleDNS",
        series(METRIC_DNS_CACHE_LOOKUPS, "0x22 1x40", aiohttp_client_dns_source="stale"),
    ),
    "stale answers, born": (
        "AiohttpStaleDNS",
        series(METRIC_DNS_CACHE_LOOKUPS, "_x22 1x40", aiohttp_client_dns_source="stale"),
    ),
    "accept queue overflows": ("AiohttpSYNRetransmissions", tcp({0.001: 10, 1.006: 10})),
    "accept queue overflows, 1 of 100": ("AiohttpSYNRetransmissions", tcp({0.001: 297, 1.006: 3})),
    "two SYNs lost": ("AiohttpSYNRetransmissions", tcp({0.001: 10, 3.01: 10})),
    "a burst at the start: 99 of 200 connects": ("AiohttpSYNRetransmissions", tcp({0.001: 101, 1.01: 99}, of=BORN)),
    "accept queue overflows, restarted": ("AiohttpSYNRetransmissions", tcp({0.001: 10, 1.006: 10}, of=RESET)),
    "dead first address": ("AiohttpDeadAddress", tcp({0.252: 2})),
    "dead first address, quarantined": ("AiohttpDeadAddress", tcp({0.001: 60, 0.255: 2})),
    "dead first address, edges as other exporters write them": (
        "AiohttpDeadAddress",
        tcp({0.001: 60, 0.255: 2}, le="{:e}"),
    ),
    "session per request": ("AiohttpTooManyHandshakes", requests(60, 60)),
    "every fifth request": ("AiohttpTooManyHandshakes", requests(60, 12)),
    "session per request, from the start": ("AiohttpTooManyHandshakes", requests(300, 300, of=BORN)),
    "session per request, restarted": ("AiohttpTooManyHandshakes", requests(60, 60, of=RESET)),
    "expired, the first handshake ever": (
        "AiohttpTLSFailures",
        histogram(METRIC_TLS_DURATION, {**SERVER, "error_type": "certificate_expired"}, {0.02: 1}, of=BORN),
    ),
    "expired, once a server of many is reached": ("AiohttpTLSFailures", tls("certificate_expired", 3)),
    "expired, restarted": ("AiohttpTLSFailures", tls("certificate_expired", 1, of=RESET)),
    "peer hangs up": ("AiohttpTLSFailures", tls("peer_connection_closed", 4)),
    "queue timeout, the first ever": (
        "AiohttpQueueTimeouts",
        histogram(METRIC_TIME_IN_QUEUE, {**SERVER, "error_type": "timed_out"}, {10.0: 1}, of=BORN),
    ),
    "queue timeouts": (
        "AiohttpQueueTimeouts",
        histogram(METRIC_TIME_IN_QUEUE, {**SERVER, "error_type": "timed_out"}, {10.0: 1}),
    ),
    "reload rejected": (
        "AiohttpReloadRejected",
        series(METRIC_RELOADS, "0x20 1x40", aiohttp_tls_name="own", outcome="rejected"),
    ),
    "reload rejected, born": (
        "AiohttpReloadRejected",
        series(METRIC_RELOADS, "_x20 1x40", aiohttp_tls_name="own", outcome="rejected"),
    ),
    "reload rejected, in each of two lives": (
        "AiohttpReloadRejected",
        series(METRIC_RELOADS, "1x10 _x12 1x40", aiohttp_tls_name="own", outcome="rejected"),
    ),
    "own certificate": (
        "AiohttpCertificateExpiring",
        series(METRIC_NOT_AFTER, f"{6 * DAY}x60", aiohttp_tls_name="own", aiohttp_tls_role="server"),
    ),
    "own certificate, long ended": (
        "AiohttpCertificateExpiring",
        series(METRIC_NOT_AFTER, f"{-9 * DAY}x60", aiohttp_tls_name="own", aiohttp_tls_role="client"),
    ),
    "peer's certificate": (
        "AiohttpCertificateExpiring",
        healthy() | series(METRIC_NOT_AFTER, f"{6 * DAY}x60", server_address="y.test"),
    ),
    "hook raises": ("AiohttpTelemetryErrors", series(METRIC_TELEMETRY_ERRORS, "0x22 1x40")),
    "hook raises, born": ("AiohttpTelemetryErrors", series(METRIC_TELEMETRY_ERRORS, "_x22 1x40")),
}


@pytest.mark.parametrize("fault", FIRING)
def test_an_alert_fires_under_its_fault(fault: str) -> None:
    """The alert for it fires, and it alone: with first failures, counter resets, bursts, a busy process beside it."""
    alert, given = FIRING[fault]
    assert all_agree() or failures(firing(given, {alert}, "28m")) == ""


SILENT: dict[str, Series] = {
    "nothing": {},
    "healthy": healthy(),
    "healthy, restarted": healthy(of=RESET),
    "healthy, no traffic any more": healthy(of=STOPPED),
    "healthy, no traffic ever": healthy(of="{0}x60"),
    "healthy, born": healthy(of=BORN),
    "one slow lookup": histogram(METRIC_DNS_DURATION, NAME, {0.2: 1}, of=BORN),
    "a lost DNS packet": dns("timed_out", 1),
    "one failure of a thousand lookups": histogram(METRIC_DNS_DURATION, NAME, {0.002: 100})
    | histogram(METRIC_DNS_DURATION, {**NAME, "error_type": "host_not_found"}, {0.002: 1}, of=BORN),
    "two slow connects": tcp({1.006: 2, 0.26: 2, 0.001: 100}, of=BORN),
    "connects of a far host": tcp({0.15: 10}),
    "connects that time out": tcp({5.0: 10}),
    "a peer that restarts": tls("peer_connection_closed", 2),
    "one expired certificate of 100 addresses": histogram(METRIC_TLS_DURATION, FULL, {0.005: 10})
    | histogram(METRIC_TLS_DURATION, {**SERVER, "error_type": "certificate_expired"}, {0.02: 1}, of=BORN),
    "a host that is asked once a minute": requests(1, 1),
    "a host that is asked seldom": requests(10, 5),
    "handshakes that fail": requests(60, 1)
    | histogram(METRIC_TLS_DURATION, {**SERVER, "error_type": "timed_out"}, {5.0: 0.02}),
    "reload rejected, long ago": series(METRIC_RELOADS, "1x100", aiohttp_tls_name="own", outcome="rejected"),
    "a peer's certificate that ended long ago": series(METRIC_NOT_AFTER, f"{-2 * DAY}x60", server_address="x.test"),
    "contexts at the start": series(METRIC_SSL_CONTEXTS, "0x2 20x60"),
    "contexts that are replaced": series(METRIC_SSL_CONTEXTS, "10x5 20x5 10x5 20x5 10x60"),
}


SILENT_AT = {"reload rejected, long ago": ("61m", "90m")}
"""It was seen first when it was an hour old."""


@pytest.mark.parametrize("situation", SILENT)
def test_no_alert_without_a_fault(situation: str) -> None:
    """Nothing fires on a healthy process, without traffic, on a single hiccup, or long after it was over."""
    assert all_agree() or failures(silence(situation)) == ""


def silence(situation: str) -> Group:
    """Return the test that nothing fires."""
    return firing(SILENT[situation], set(), *SILENT_AT.get(situation, ("21m", "28m", "45m")))


@functools.cache
def all_agree() -> bool:
    """Run promtool once for all; if it finds a fault, each case is run by itself to tell which."""
    faults = (firing(given, {alert}, "28m") for alert, given in FIRING.values())
    return failures(*faults, *map(silence, SILENT)) == ""


def test_resumption_that_collapses() -> None:
    """Peers that stop to resume are told of after their share halved for 15 minutes, and not before."""
    collapsed = resumed(8, 1)
    assert failures(firing(collapsed, {"AiohttpResumptionCollapsed"}, "140m")) == ""
    assert failures(firing(collapsed, set(), "99m", "112m")) == ""


def test_resumption_that_ends_with_a_restart() -> None:
    """The resumed series may be gone with the old process; then the share is 0."""
    (gone,) = _counted(RESUMED, "")
    assert failures(firing({**resumed(8, 0), gone: "0+8x100"}, {"AiohttpResumptionCollapsed"}, "140m")) == ""


@pytest.mark.parametrize("share", [(1, 0), (2, 2), (9, 6), (0, 0)])
def test_resumption_that_does_not_collapse(share: tuple[float, float]) -> None:
    """A peer that never resumed much, or resumes a little less, is none; nor is an end of traffic."""
    assert failures(firing(resumed(*share), set(), "140m")) == ""
    stopped = {name: values.split()[0] for name, values in resumed(9, 9).items()}
    assert failures(firing(stopped, set(), "104m")) == ""


def test_contexts_that_grow() -> None:
    """A context per request fires; so does a slow leak."""
    for values in ("0+10x90", "3+0.5x90"):
        assert failures(firing(series(METRIC_SSL_CONTEXTS, values), {"AiohttpContextsGrowing"}, "80m")) == ""


def test_own_rejection_ends() -> None:
    """An hour after the last rejection the alert is over."""
    given = series(METRIC_RELOADS, "0x20 1x200", aiohttp_tls_name="own", outcome="rejected")
    assert failures(firing(given, {"AiohttpReloadRejected"}, "75m")) == ""
    assert failures(firing(given, set(), "90m")) == ""


@pytest.mark.parametrize("every", ["15s", "1m"])
def test_scraped_or_pushed(every: str) -> None:
    """Windows hold enough samples whether a process is scraped each 15 s or pushes each minute."""
    given = tcp({0.001: 10, 1.006: 10}, of="{0}+{1}x300")
    assert failures(firing(given, {"AiohttpSYNRetransmissions"}, "28m", interval=every)) == ""


def test_a_cluster_is_no_matter_of_traffic() -> None:
    """Twenty slow connects in ten minutes are found among 10, 200, 2,000 and 20,000."""
    for others in (1, 20, 200, 1800):
        assert failures(firing(tcp({0.001: others, 0.26: 2}), {"AiohttpDeadAddress"}, "28m")) == "", others


def test_promtool_finds_no_fault() -> None:
    """``promtool check rules`` is clean."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "check", "rules", RULES], capture_output=True, text=True, check=False, timeout=60)
    assert (0, "") == (done.returncode, done.stderr)


RULES_BY_NAME = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
}


X443 = {"server_address": "x.test", "server_port": "443"}


@pytest.mark.parametrize(
    ("fault", "labels", "summary", "description"),
    [
        (
            "expired, the first handshake ever",
            {**X443, "error_type": "certificate_expired"},
            "TLS to x.test:443 fails: certificate_expired",
            "100% of the handshakes with x.test:443 within 10 minutes ended with certificate_expired.",
        ),
        (
            "peer's certificate",
            {"server_address": "y.test"},
            "The certificate of y.test ends soon",
            "The certificate of y.test ends in 5d 23h 32m 0s.",
        ),
        (
            "own certificate",
            {"aiohttp_tls_name": "own", "aiohttp_tls_role": "server"},
            "The certificate of own ends soon",
            "The certificate of own ends in 5d 23h 32m 0s.",
        ),
        (
            "slow lookups, born with all they have",
            {"dns_question_name": "x.test"},
            "DNS lookups of x.test are slow",
            "The p99 of x.test is 199ms over 15 minutes; it should be below 50 ms.",
        ),
    ],
)
def test_annotations_are_filled(fault: str, labels: dict[str, str], summary: str, description: str) -> None:
    """What a pager shows has names and values in it, in units."""
    alert, given = FIRING[fault]
    rule = RULES_BY_NAME[alert]
    annotations = {"summary": summary, "description": description, "runbook_url": rule["annotations"]["runbook_url"]}
    shown = {"exp_labels": {"job": PROCESS["job"], **rule["labels"], **labels}, "exp_annotations": annotations}
    expected = {"alertname": alert, "eval_time": "28m", "exp_alerts": [shown]}
    assert failures(group(given, expected, kind="alert_rule")) == ""


def test_every_alert_is_tried() -> None:
    """Each alert of the rules fires in a test of this file."""
    tried = {alert for alert, _ in FIRING.values()} | {"AiohttpResumptionCollapsed", "AiohttpContextsGrowing"}
    assert set(RULES_BY_NAME) == tried

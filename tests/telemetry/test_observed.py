from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened import Phase, TelemetrySettings
from aiohttp_hardened.telemetry import _names, _observed
from aiohttp_hardened.timing._connection import Connection, register_pool
from aiohttp_hardened.timing._figures import figures
from tests.telemetry._driving import Driven, driven

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiohttp_hardened.timing._connection import ConnectionState


class FakePool:
    """A connector that shows what it is told to."""

    def __init__(self, loop: Any, states: list[tuple[Connection, ConnectionState]]) -> None:
        self.event_loop = loop
        self.states = states

    def connection_states(self) -> Iterable[tuple[Connection, ConnectionState]]:
        return self.states


@pytest.fixture
def own_figures() -> Iterator[None]:
    """The process' figures are as at its start."""
    kept = dict(vars(figures))
    vars(figures).update(vars(type(figures)()))
    yield
    vars(figures).update(kept)


def values(hooked: Driven, name: str) -> list[tuple[dict[str, Any], float]]:
    return [(dict(point.attributes), point.value) for point in hooked.points(name)]


@pytest.mark.usefixtures("own_figures")
def test_what_alerts_watch_exists_at_zero(hooked: Driven) -> None:
    """An alert on a first failure needs the 0 before it."""
    figures.announce_reloads("default")
    assert values(hooked, "aiohttp.client.telemetry.errors") == [({}, 0)]
    assert values(hooked, "aiohttp.client.ssl_contexts") == [({}, 0)]
    assert values(hooked, "aiohttp.client.dns_cache.lookups") == [
        ({"aiohttp.client.dns.source": source}, 0) for source in ("cache", "lookup", "coalesced", "stale", "system")
    ]
    assert values(hooked, "aiohttp.client.tls.reloads") == [
        ({"aiohttp.tls.name": "default", "outcome": outcome}, 0) for outcome in ("applied", "unchanged", "rejected")
    ]
    hooked.begin()  # as soon as a server is known
    assert values(hooked, "aiohttp.client.tcp_connect.syn_retransmits") == [
        ({"server.address": "x.test", "server.port": 8080}, 0)
    ]


@pytest.mark.usefixtures("own_figures")
def test_figures_are_read_at_collection(hooked: Driven) -> None:
    """Each figure of the process has its instrument."""
    figures.count_telemetry_error()
    figures.change_ssl_contexts(2)
    figures.count_reload("default", "rejected")
    figures.own_not_after["default", "client"] = 5.0
    figures.show_peer_not_after("x.test", 7.0)
    assert values(hooked, "aiohttp.client.telemetry.errors") == [({}, 1)]
    assert values(hooked, "aiohttp.client.ssl_contexts") == [({}, 2)]
    assert values(hooked, "aiohttp.client.tls.reloads") == [({"aiohttp.tls.name": "default", "outcome": "rejected"}, 1)]
    assert values(hooked, "aiohttp.client.tls.certificate.not_after") == [
        ({"aiohttp.tls.name": "default", "aiohttp.tls.role": "client"}, 5.0),
        ({"server.address": "x.test"}, 7.0),
    ]
    figures.count_telemetry_error()
    assert values(hooked, "aiohttp.client.telemetry.errors") == [({}, 2)]


@pytest.mark.usefixtures("own_figures")
def test_peers_of_certificates_are_limited_with_the_hosts() -> None:
    """A certificate per tenant makes no series per tenant; of those beyond the limit the first to end is told."""
    with driven(TelemetrySettings(max_hosts=1)) as hooked:
        for number, ends in enumerate((100.0, 90.0, 81.0, 95.0)):
            figures.show_peer_not_after(f"host{number}.test", ends)
        assert values(hooked, "aiohttp.client.tls.certificate.not_after") == [
            ({"server.address": "host0.test"}, 100.0),
            ({"server.address": "_OTHER"}, 81.0),
        ]


def test_retransmits_add_up(hooked: Driven) -> None:
    """SYN segments that were sent again are counted per server."""
    for segments in (0, 2, 1):
        attempt = hooked.begin()
        attempt.start_setup()
        race = attempt.enter(Phase.TCP)
        race.attributes["aiohttp.client.tcp.syn_retransmits"] = segments
        attempt.connected(None, reused=False)
    assert hooked.point("aiohttp.client.tcp_connect.syn_retransmits").value == 3


def test_open_connections_are_counted_by_state_and_server(hooked: Driven) -> None:
    """Connections are counted where they are, when somebody asks."""

    def connection() -> Connection:
        return hooked.connection(hooked.begin())

    pool = FakePool(None, [(connection(), "active"), (connection(), "idle"), (connection(), "idle")])
    register_pool(pool)
    name = "http.client.open_connections"
    server = {"server.address": "x.test", "server.port": 8080}
    assert hooked.point_of(name, **server, **{"http.connection.state": "active"}).value == 1
    assert hooked.point_of(name, **server, **{"http.connection.state": "idle"}).value == 2
    pool.states.pop()
    assert hooked.point_of(name, **server, **{"http.connection.state": "idle"}).value == 1


@pytest.mark.loops("asyncio")
async def test_the_default_executor_is_watched() -> None:
    """Busy threads and waiting jobs show what a lookup on the default executor would wait for."""
    loop = asyncio.get_running_loop()
    pool = FakePool(loop, [])
    register_pool(pool)
    with driven() as hooked:
        assert hooked.point("aiohttp.client.executor.busy").value == 0
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

        executor = ThreadPoolExecutor(2)
        loop.set_default_executor(executor)
        release, started = threading.Event(), threading.Barrier(3)

        def work() -> None:
            started.wait(5)
            release.wait(5)

        jobs = [asyncio.to_thread(work) for _ in range(2)] + [asyncio.to_thread(release.wait, 5)]
        waiting = asyncio.gather(*jobs)
        await asyncio.sleep(0)
        started.wait(5)
        collected = hooked.metrics()
        busy, queued = (
            collected[name].data.data_points[0].value
            for name in ("aiohttp.client.executor.busy", "aiohttp.client.executor.queued")
        )
        release.set()
        await waiting
        assert (busy, queued) == (2, 1)


@pytest.mark.loops("uvloop")
async def test_a_loop_that_hides_its_executor_has_no_gauge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is not known is absent, not 0."""
    pool = FakePool(asyncio.get_running_loop(), [])
    monkeypatch.setattr(_observed, "loops", lambda: {pool.event_loop})
    with driven() as hooked:
        assert hooked.points("aiohttp.client.executor.busy") == []


@pytest.mark.usefixtures("hooks_raise")
def test_a_reader_that_fails_is_contained(hooked: Driven, caplog: pytest.LogCaptureFixture) -> None:
    """One number that cannot be read is counted, costs no other, and fills no log."""

    class Broken(FakePool):
        def connection_states(self) -> Iterable[tuple[Connection, ConnectionState]]:
            raise RuntimeError

    pool = Broken(None, [])
    register_pool(pool)
    before = figures.telemetry_errors
    collected = hooked.metrics()
    assert "http.client.open_connections" not in collected
    assert "aiohttp.client.dns_cache.lookups" in collected
    assert figures.telemetry_errors == before + 1
    assert caplog.records == []


def test_a_forked_child_starts_at_zero(hooked: Driven) -> None:
    """A worker has none of its parent's requests, and no lock that a thread of the parent holds."""
    attempt = hooked.begin()
    observed = hooked.metric_hook._observed
    observed._lock.acquire()
    observed._reset()
    assert hooked.points(_names.METRIC_ACTIVE_REQUESTS) == []
    hooked.answer(attempt)
    assert hooked.point(_names.METRIC_ACTIVE_REQUESTS).value == 0

"""Faults that come and go under load: afterwards everything works again, and nothing was lost or left.

Not in the default run: ``CHAOS_SECONDS=300 pytest -m chaos --timeout 900``.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aiohttp_hardened import (
    DNSSettings,
    Phase,
    Settings,
    TimeoutSettings,
    TLSSettings,
    create_connector,
    create_session,
)
from aiohttp_hardened.telemetry import MetricHook, SpanHook
from aiohttp_hardened.testing import FakeNameServer, HTTPServer, PhaseRecorder, TLSServer, dead_address, scripted_proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp_hardened.testing import ThrowawayCA

SECONDS = float(os.environ.get("CHAOS_SECONDS", "20"))
AT_ONCE = 64
QUARANTINE = 1.0
MODES: tuple[Any, ...] = (
    "answer",
    "answer",
    "silent",
    "no AAAA",
    "servfail",
    "refused",
    "nxdomain",
    "nodata",
    "garbage",
)


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_everything_works_again_after_chaos(throwaway_ca: ThrowawayCA) -> None:  # noqa: PLR0915  (one story)
    """Name-server, address, TLS and proxy faults under 64-way load leave nothing behind, and all count the same."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the servers' side of refused handshakes
    recorder, exporter, reader = PhaseRecorder(), InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    hooks: list[Any] = [recorder, SpanHook(tracer_provider=tracers), MetricHook(meter_provider=meters)]
    outcomes: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        names = stack.enter_context(FakeNameServer())
        http = await stack.enter_async_context(HTTPServer())
        tls = await stack.enter_async_context(TLSServer(throwaway_ca.issue("a.test", "b.test")))
        bad = await stack.enter_async_context(TLSServer(throwaway_ca.issue_untrusted("a.test", "b.test")))
        dead = stack.enter_context(dead_address("127.0.0.2", http.port))
        proxy = await stack.enter_async_context(
            scripted_proxy(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        )
        settings = Settings(
            dns=DNSSettings(nameservers=(names.address,), cache_ttl=0.05, quarantine=QUARANTINE),
            timeouts=TimeoutSettings(dns=0.3, tcp=0.5, tls=0.5, connect=1.5, read=2.0),
            tls=TLSSettings(trust="none", ca_files=(str(throwaway_ca.ca_file),)),
        )
        connector = create_connector(settings, force_close=True)
        session = await stack.enter_async_context(create_session(settings, hooks=hooks, connector=connector))
        good = [server.url(host=host) for server in (http, tls) for host in ("a.test", "b.test")]
        asked: list[tuple[str, dict[str, Any]]] = [(url, {}) for url in good]
        asked += [(bad.url(host="a.test"), {}), (tls.url(host="a.test"), {"proxy": proxy})]

        async def load(seed: int) -> None:
            choose = random.Random(seed)
            while time.monotonic() < until:
                url, options = choose.choice(asked)
                try:
                    async with (
                        asyncio.timeout(choose.choice((0.05, 5.0, 5.0))),
                        session.get(url, **options) as response,
                    ):
                        await response.read()
                        outcomes["good"] += 1
                except (aiohttp.ClientError, TimeoutError) as exc:
                    outcomes[type(exc).__name__] += 1

        for host in ("a.test", "b.test"):
            names.set(host, http.host, ttl=0)
        until = time.monotonic() + SECONDS
        gremlin = asyncio.create_task(_break_things(names, [dead.host, http.host], lambda: time.monotonic() < until))
        await asyncio.gather(*(load(seed) for seed in range(AT_ONCE)))
        await gremlin
        for host in ("a.test", "b.test"):
            names.set(host, http.host, ttl=0)
        await asyncio.sleep(QUARANTINE)
        recorded = sum(outcomes.values())
        for url in good * 16:
            async with session.get(url) as response:
                assert response.status == 200
        assert outcomes["good"] > AT_ONCE
        assert len(outcomes) > 3
        # Every attempt that the callers made is told of: all of theirs end in one record each.
        assert len(recorder.requests()) == recorded + len(good) * 16
    await asyncio.get_running_loop().shutdown_default_executor()  # the gremlin's
    recorder.check_invariants()
    assert len(recorder.records) == len(exporter.get_finished_spans())
    data = reader.get_metrics_data()
    assert data is not None
    counts = {
        metric.name: sum(getattr(point, "count", 0) for point in metric.data.data_points)
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    lookups = [
        each
        for each in recorder.of(Phase.DNS)
        if each.attributes.get("aiohttp.client.dns.source") in ("lookup", "system")
    ]
    assert (len(recorder.requests()), len(recorder.of(Phase.TLS)), len(lookups)) == (
        counts["http.client.request.duration"],
        counts["aiohttp.client.tls_handshake.duration"],
        counts["dns.lookup.duration"],
    )
    tracers.shutdown()
    meters.shutdown()


async def _break_things(names: FakeNameServer, hosts: list[str], goes_on: Callable[[], bool]) -> None:
    choose = random.Random(3)
    while goes_on():
        await asyncio.sleep(0.1)
        if choose.random() < 0.1:
            await asyncio.to_thread(names.stop)
            await asyncio.sleep(0.3)
            with suppress(OSError):
                names.start()
        for host in ("a.test", "b.test"):
            addresses = choose.choice(([hosts[1]], hosts, hosts[::-1], [hosts[0]]))
            names.set(host, *addresses, mode=choose.choice(MODES), ttl=0)

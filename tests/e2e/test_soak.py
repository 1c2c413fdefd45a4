"""Many requests of all endings at once leave nothing behind, and everybody counts the same."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

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
from aiohttp_hardened.testing import (
    FakeNameServer,
    HTTPServer,
    PhaseRecorder,
    TLSServer,
    dead_address,
    refusing_address,
    scripted_proxy,
    stalled_tls,
)
from aiohttp_hardened.timing._figures import figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span

    from aiohttp_hardened.testing import ThrowawayCA

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "600"))
"""``SOAK_REQUESTS=10000 pytest tests/e2e/test_soak.py --timeout 900`` is the long form."""
AT_ONCE = 64


class Open(SpanProcessor):
    """Count spans that started and did not end."""

    def __init__(self) -> None:
        self.open = 0
        self.ended: Counter[str] = Counter()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.open += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.open -= 1
        self.ended["request" if span.name == "GET" else span.name] += 1


@pytest.mark.timeout(900)
async def test_mixed_requests_leave_nothing(throwaway_ca: ThrowawayCA) -> None:
    """One context, no open span; records, spans and metrics agree (conftest sees tasks, threads, files.)."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # the servers' side of refused handshakes
    choose = random.Random(7)
    recorder, spans, reader = PhaseRecorder(), Open(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(spans)
    meters = MeterProvider([reader])
    hooks: list[Any] = [recorder, SpanHook(tracer_provider=tracers), MetricHook(meter_provider=meters)]
    seen: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        endings = await _endings(stack, throwaway_ca, hooks)
        contexts = figures.ssl_contexts
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(ending: Callable[[], Any]) -> None:
            async with gate:
                try:
                    await ending()
                    seen["good"] += 1
                except (aiohttp.ClientError, TimeoutError, asyncio.CancelledError) as exc:
                    seen[type(exc).__name__] += 1

        await asyncio.gather(*(one(choose.choice(endings)) for _ in range(REQUESTS)))
        assert figures.ssl_contexts <= contexts + 1, "one trust decision, one context"
    assert sum(seen.values()) == REQUESTS
    assert len(seen) > 4
    recorder.check_invariants()
    assert spans.open == 0
    for phase, name in ((Phase.REQUEST, "request"), (Phase.TCP, "TCP connect"), (Phase.TLS, "TLS handshake")):
        assert len(recorder.of(phase)) == spans.ended[name]
    assert len(recorder.requests()) == len(recorder.started) >= REQUESTS
    for name, phase in (
        ("http.client.request.duration", Phase.REQUEST),
        ("aiohttp.client.tcp_connect.duration", Phase.TCP),
    ):
        assert len(recorder.of(phase)) == _count(reader, name)
    tracers.shutdown()
    meters.shutdown()


async def _endings(stack: AsyncExitStack, ca: ThrowawayCA, hooks: list[Any]) -> list[Callable[[], Any]]:
    names = stack.enter_context(FakeNameServer())
    http = await stack.enter_async_context(HTTPServer())
    tls = await stack.enter_async_context(TLSServer(ca.issue("x.test", "127.0.0.1")))
    bad = await stack.enter_async_context(TLSServer(ca.issue_untrusted("bad.test")))
    dead = stack.enter_context(dead_address("127.0.0.2", http.port))
    refused = stack.enter_context(refusing_address())
    stalled = stack.enter_context(stalled_tls())
    rejecting = await stack.enter_async_context(
        scripted_proxy(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
    )
    for name, addresses in {
        "x.test": ("127.0.0.1",),
        "bad.test": ("127.0.0.1",),
        "twins.test": (dead.host, "127.0.0.1"),
    }.items():
        names.set(name, *addresses)
    names.set("silent.test", mode="silent")
    names.set("broken.test", mode="servfail")
    settings = Settings(
        dns=DNSSettings(nameservers=(names.address,)),
        timeouts=TimeoutSettings(dns=0.2, tls=0.2, tcp=0.5, connect=1.5, queue=5.0, read=1.0),
        tls=TLSSettings(trust="none", ca_files=(str(ca.ca_file),)),
    )
    pooled = await stack.enter_async_context(create_session(settings, hooks=hooks))
    connector = create_connector(settings, force_close=True)
    fresh = await stack.enter_async_context(create_session(settings, hooks=hooks, connector=connector))

    async def get(session: aiohttp.ClientSession, url: str, **options: Any) -> None:
        async with session.get(url, **options) as response:
            await response.read()

    async def cancelled(url: str) -> None:
        async with asyncio.timeout(0.05):
            await get(fresh, url)

    async def unread() -> None:
        async with pooled.get(http.url("/stream?chunks=2&seconds=0.2")):
            pass

    urls: list[tuple[aiohttp.ClientSession, str]] = [
        (pooled, http.url()),
        (pooled, tls.url(host="x.test")),
        (fresh, http.url(host="x.test")),
        (fresh, tls.url(host="x.test")),
        (fresh, http.url(host="twins.test")),
        (fresh, bad.url(host="bad.test")),
        (fresh, f"http://127.0.0.1:{refused.port}/"),
        (fresh, f"https://{stalled.host}:{stalled.port}/"),
        (fresh, "http://silent.test/"),
        (fresh, "http://broken.test/"),
        (fresh, "http://nosuch.test/"),
        (pooled, http.url("/cut")),
        (pooled, http.url("/status/500")),
        (pooled, http.url("/redirect?to=/")),
        (pooled, http.url("/close-keepalive")),
        (pooled, http.url("/slow?seconds=0.01")),
    ]
    made: list[Callable[[], Any]] = [lambda s=session, u=url: get(s, u) for session, url in urls]
    made += [
        lambda u=url: cancelled(u) for url in (http.url("/slow?seconds=3"), f"https://{stalled.host}:{stalled.port}/")
    ]
    made += [unread, lambda: get(fresh, "https://x.test/", proxy=rejecting)]
    return made


def _count(reader: InMemoryMetricReader, name: str) -> int:
    data = reader.get_metrics_data()
    assert data is not None
    return sum(
        point.count
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    )

"""What people ran into, each as the behaviour that is right."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.instrumentation.aiohttp_client import create_trace_config as contrib_trace_config
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aiohttp_hardened import (
    DNSSettings,
    Phase,
    PhaseTimeoutError,
    Settings,
    SettingsError,
    TimeoutSettings,
    create_connector,
    create_session,
    create_trace_config,
    failed_phase,
)
from aiohttp_hardened.telemetry import MetricHook, SpanHook
from aiohttp_hardened.testing import (
    FakeNameServer,
    FixedResolver,
    HTTPServer,
    PhaseRecorder,
    TLSServer,
    dead_address,
    raw_server,
    refusing_address,
    stalled_tls,
)
from aiohttp_hardened.timing import _hooks
from aiohttp_hardened.timing._figures import figures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan


class Told:
    """OpenTelemetry providers of a test's own."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.hooks: list[Any] = [SpanHook(tracer_provider=self.tracers), MetricHook(meter_provider=self.meters)]

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if name in (None, span.name)]

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        metrics = data.resource_metrics[0].scope_metrics if data else []
        return [
            point
            for scope in metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def told() -> Told:
    return Told()


async def get(session: aiohttp.ClientSession, url: str, **options: Any) -> str:
    async with session.get(url, **options) as response:
        return await response.text()


async def seconds(awaitable: Any) -> tuple[float, BaseException]:
    start = time.monotonic()
    with pytest.raises((aiohttp.ClientError, TimeoutError)) as caught:
        await awaitable
    return time.monotonic() - start, caught.value


async def test_nothing_stays_current_beside_another_instrumentation(told: Told, caplog: Any) -> None:
    """The caller's span is the same before and after, and no detach fails (CASES 6)."""
    tracer = told.tracers.get_tracer("test")
    async with HTTPServer() as server:
        theirs = contrib_trace_config(tracer_provider=told.tracers)
        async with create_session(hooks=told.hooks, trace_configs=[theirs]) as session:
            with tracer.start_as_current_span("caller") as caller:
                await asyncio.gather(*(get(session, server.url()) for _ in range(3)))
                assert trace.get_current_span() is caller
                await get(session, server.url())
                assert trace.get_current_span() is caller
    assert "Failed to detach" not in caplog.text


@pytest.fixture
def instrumented(told: Told) -> Iterator[None]:
    instrumentor = AioHttpClientInstrumentor()
    instrumentor.instrument(tracer_provider=told.tracers, meter_provider=told.meters)
    yield
    instrumentor.uninstrument()


async def test_one_client_span_under_another_instrumentation(told: Told, instrumented: None) -> None:
    """Theirs is the one CLIENT span, our phases are its children, and no list of theirs grows (CASES 7)."""
    given: list[aiohttp.TraceConfig] = []
    async with HTTPServer() as server:
        for _ in range(3):
            async with create_session(hooks=told.hooks, trace_configs=given) as session:
                told.exporter.clear()
                await get(session, server.url())
                (client,) = [span for span in told.spans() if span.kind is trace.SpanKind.CLIENT]
                assert "opentelemetry.instrumentation" in client.instrumentation_scope.name
                (setup,) = told.spans("connection setup")
                assert client.context.span_id == setup.parent.span_id
    assert given == []


@pytest.mark.parametrize("ours_first", [True, False])
async def test_the_order_of_two_trace_configs_does_not_matter(told: Told, ours_first: bool) -> None:
    """Whichever TraceConfig comes first, there is one CLIENT span (CASES 7)."""
    configs = [create_trace_config(hooks=told.hooks), contrib_trace_config(tracer_provider=told.tracers)]
    async with (
        HTTPServer() as server,
        aiohttp.ClientSession(trace_configs=configs if ours_first else configs[::-1]) as session,
    ):
        await get(session, server.url())
    assert [span.name for span in told.spans() if span.kind is trace.SpanKind.CLIENT] == ["GET"]


async def test_a_body_lasts_until_it_is_read(told: Told) -> None:
    """A body that comes in pieces is a span of its own, as long as it took (CASES 14)."""
    async with (
        HTTPServer() as server,
        create_session(hooks=told.hooks) as session,
        session.get(server.url("/stream?chunks=3&seconds=0.1")) as response,
    ):
        async for _ in response.content.iter_any():
            pass
    (request,), (body,) = told.spans("GET"), told.spans("response body")
    assert body.start_time == request.end_time
    assert body.end_time - body.start_time > 0.2e9
    assert body.parent.span_id == request.context.span_id


@pytest.mark.parametrize("addresses", [1, 2, 8])
async def test_one_connect_budget_over_all_addresses(addresses: int) -> None:
    """However many addresses accept and never speak TLS, the budget is one (CASES 15)."""
    hosts = [f"127.0.0.{number}" for number in range(2, 2 + addresses)]
    settings = Settings(timeouts=TimeoutSettings(connect=0.5, tls=0.3))
    with stalled_tls(hosts[0]) as (_, port):
        listeners = [stalled_tls(host, port) for host in hosts[1:]]
        for each in listeners:
            each.__enter__()
        try:
            connector = create_connector(settings, resolver=FixedResolver(hosts))
            async with create_session(settings, hooks=(), connector=connector) as session:
                took, exc = await seconds(session.get(f"https://x.test:{port}/"))
        finally:
            for each in listeners:
                each.__exit__(None, None, None)
    expected = ("tls", 0.3) if addresses == 1 else ("connect", 0.5)
    assert took == pytest.approx(expected[1], abs=0.2)
    assert isinstance(exc.__cause__, PhaseTimeoutError)
    assert (Phase.TLS, expected[1]) == (exc.__cause__.phase, exc.__cause__.budget)


async def test_a_requests_own_timeout_wins_where_it_says_something() -> None:
    """``sock_connect`` replaces tcp and tls, ``connect`` replaces queue and connect; the rest stays (CASES 15)."""
    settings = Settings(timeouts=TimeoutSettings(tls=3.0, connect=5.0, queue=5.0))
    with stalled_tls() as (host, port):
        async with create_session(settings, hooks=()) as session:
            for own, budget in (({"sock_connect": 0.2}, 0.2), ({"connect": 0.3}, 0.3), ({"total": 0.25}, 0.25)):
                took, exc = await seconds(session.get(f"https://{host}:{port}/", timeout=aiohttp.ClientTimeout(**own)))
                assert took == pytest.approx(budget, abs=0.15)
                assert failed_phase(exc) is Phase.TLS


async def test_aiohttps_default_timeout_is_nobodys_decision() -> None:
    """A connector of ours in a plain session holds its own budgets, not aiohttp's 30 s."""
    with stalled_tls() as (host, port):
        connector = create_connector(Settings(timeouts=TimeoutSettings(tls=0.2)))
        async with aiohttp.ClientSession(connector=connector) as session:
            took, _ = await seconds(session.get(f"https://{host}:{port}/"))
    assert took < 1


async def test_a_full_pool_is_not_a_dead_host(told: Told) -> None:
    """A wait that times out in the queue says that the pool was full (CASES 16)."""
    settings = Settings(timeouts=TimeoutSettings(queue=0.2))
    async with HTTPServer() as server:
        connector = create_connector(settings, limit=1)
        async with create_session(settings, hooks=told.hooks, connector=connector) as session:
            busy = asyncio.create_task(get(session, server.url("/slow?seconds=0.6")))
            await asyncio.sleep(0.05)
            _, exc = await seconds(session.get(server.url()))
            await busy
    assert failed_phase(exc) is Phase.QUEUE
    assert "the pool was full (limit 1)" in "".join(exc.__notes__)
    (waited,) = told.spans("wait for connection")
    assert waited.attributes["error.type"] == "timed_out"
    assert [point.attributes["error.type"] for point in told.points("http.client.request.time_in_queue")] == [
        "timed_out"
    ]


class Broken:
    """A hook that raises wherever it is called."""

    def __call__(self, record: Any) -> None:
        raise RuntimeError("broken")

    def on_request_start(self, attempt: Any) -> None:
        raise asyncio.CancelledError

    def on_dns_cache_hit(self, attempt: Any) -> None:
        raise ValueError("broken")

    def on_connection_closed(self, connection: Any) -> None:
        raise KeyError("broken")


async def test_a_broken_hook_changes_nothing(told: Told, caplog: Any) -> None:
    """Requests succeed, other hooks are called, failures are counted and logged once in a while (CASES 17)."""
    recorder = PhaseRecorder()
    before = figures.telemetry_errors
    _hooks._last_logged.clear()
    async with HTTPServer() as server, create_session(hooks=[Broken(), recorder, *told.hooks]) as session:
        assert await asyncio.gather(*(get(session, server.url()) for _ in range(20))) == ["hello\n"] * 20
        assert not session.connector._acquired  # type: ignore[union-attr]
    recorder.check_invariants()
    assert len(recorder.requests()) == len(told.spans("GET")) == 20
    assert figures.telemetry_errors - before >= 60
    assert 0 < caplog.text.count("the request goes on") <= 4
    caplog.clear()  # its tracebacks hold the loop


def inotify() -> int:
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += "inotify" in str(entry.readlink())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
async def test_sessions_share_one_channel(closed: bool) -> None:
    """A hundred sessions, closed or forgotten, hold one c-ares channel, and none a moment later (CASES 18)."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    before = inotify()
    for _ in range(100):
        session = create_session(hooks=())
        assert inotify() <= before + 1
        if closed:
            await session.close()
    del session
    gc.collect()
    await asyncio.sleep(1.5)
    assert inotify() <= before


async def test_a_session_that_is_closed_under_a_lookup(told: Told) -> None:
    """Who looks up gets a connection error at once, never a cancellation that nobody sent (CASES 19)."""
    with FakeNameServer() as names:
        names.set("x.test", mode="silent")
        session = create_session(Settings(dns=DNSSettings(nameservers=(names.address,))), hooks=told.hooks)
        waiting = [asyncio.create_task(session.get("http://x.test/")) for _ in range(2)]
        await asyncio.sleep(0.1)
        start = time.monotonic()
        await session.close()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, aiohttp.ClientConnectionError)
        assert time.monotonic() - start < 0.2


async def test_a_session_that_is_closed_under_a_queue() -> None:
    """Who waits in the queue gets a connection error too (CASES 19)."""
    async with HTTPServer() as server:
        session = create_session(hooks=(), connector=create_connector(limit=1))
        busy = asyncio.create_task(session.get(server.url("/slow?seconds=5")))
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(session.get(server.url()))
        await asyncio.sleep(0.05)
        await session.close()
        for outcome in await asyncio.gather(waiting, busy, return_exceptions=True):
            assert isinstance(outcome, aiohttp.ClientError)


async def test_a_resolver_that_is_gone() -> None:
    """A caller's resolver that was closed under the session is a connection error (CASES 19)."""
    resolver = aiohttp.AsyncResolver()
    async with create_session(hooks=(), connector=create_connector(resolver=resolver)) as session:
        await resolver.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get("http://x.test/")


async def test_a_hidden_retry_is_two_attempts(told: Told) -> None:
    """Aiohttp's silent resend is a span of its own, with a traceparent of its own (CASES 21)."""
    async with HTTPServer() as server, create_session(hooks=told.hooks) as session:
        await get(session, server.url("/close-keepalive"))
        await get(session, server.url("/close-keepalive"))
        sent = [request.headers["traceparent"] for request in server.requests]
    spans = told.spans("GET")
    assert [None, None, 1] == [span.attributes.get("http.request.resend_count") for span in spans]
    assert [None, "aiohttp.ServerDisconnectedError", None] == [span.attributes.get("error.type") for span in spans]
    assert sent == [
        f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}" for span in spans
    ]


async def test_the_callers_trace_context_is_left_alone(told: Told) -> None:
    """One value on the wire, the caller's, in whatever case it was written (CASES 22)."""
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with HTTPServer() as server, create_session(hooks=told.hooks) as session:
        await get(session, server.url(), headers={"TraceParent": theirs})
        assert server.requests[0].headers.getall("traceparent") == [theirs]
        assert "tracestate" not in server.requests[0].headers


async def test_no_secret_is_exported(told: Told) -> None:
    """User info, query and fragment are kept back before a span starts, and in every text (CASES 23)."""
    async with HTTPServer() as server, create_session(hooks=told.hooks) as session:
        await get(session, f"http://user:p4ss@127.0.0.1:{server.port}/?token=SECRET&X-Amz-Signature=zzz#frag")
        for proxy in ("http://proxyuser:proxyp4ss@127.0.0.1:1",):
            await seconds(session.get("http://x.test/?key=SECRET", proxy=proxy))
    text = "".join(span.to_json() for span in told.spans())
    for secret in ("SECRET", "p4ss", "zzz", "frag", "proxyuser"):
        assert secret not in text
    assert "token=REDACTED&X-Amz-Signature=REDACTED" in text


async def test_fast_phases_fall_into_different_buckets(told: Told) -> None:
    """Loopback connects fill at least two buckets (CASES 24)."""
    async with HTTPServer() as server, HTTPServer() as busy:
        connector = create_connector(force_close=True)
        async with create_session(hooks=told.hooks, connector=connector) as session:
            await asyncio.gather(*(get(session, server.url()) for _ in range(60)))
            for _ in range(10):
                await get(session, busy.url())
    counts = [point.bucket_counts for point in told.points("aiohttp.client.tcp_connect.duration")]
    assert sum(any(column) for column in zip(*counts, strict=True)) >= 2


async def test_fifty_sessions_make_no_instrument_again(told: Told, caplog: Any) -> None:
    """Instruments are made once per provider; nothing is logged (CASES 25)."""
    for _ in range(50):
        async with create_session(hooks=[MetricHook(meter_provider=told.meters)]):
            pass
    assert caplog.text == ""


async def test_series_are_limited(told: Told) -> None:
    """A thousand hosts and odd methods make no more series than the limit allows (CASES 26)."""
    async with HTTPServer() as server:
        connector = create_connector(resolver=FixedResolver(), force_close=True)
        async with create_session(hooks=told.hooks, connector=connector) as session:
            for number in range(150):
                await get(session, server.url(host=f"tenant-{number}.test"))
            async with session.request("A" * 20, server.url("/echo")):
                pass
    points = told.points("http.client.request.duration")
    assert len({point.attributes["server.address"] for point in points}) == 101
    assert {"GET", "_OTHER"} == {point.attributes["http.request.method"] for point in points}


async def test_budgets_above_five_seconds_are_exact() -> None:
    """Aiohttp rounds up from 5 s; a budget of ours is what it says (CASES 31)."""
    settings = Settings(timeouts=TimeoutSettings(total=5.3, tls=5.1, connect=5.2, read=None))
    with stalled_tls() as (host, port):
        async with HTTPServer() as server, create_session(settings, hooks=()) as session:
            handshake, response = await asyncio.gather(
                seconds(session.get(f"https://{host}:{port}/")), seconds(session.get(server.url("/slow?seconds=9")))
            )
    assert handshake[0] == pytest.approx(5.1, abs=0.15)
    assert response[0] == pytest.approx(5.3, abs=0.15)


async def test_every_timeout_says_which(told: Told) -> None:
    """Each is a ``TimeoutError`` with its phase, its budget and words (CASES 32)."""
    budgets = TimeoutSettings(queue=0.1, dns=0.1, tcp=0.1, tls=0.1, read=0.1)
    with FakeNameServer() as names, dead_address() as dead, stalled_tls() as stalled:
        names.set("x.test", mode="silent")
        settings = Settings(dns=DNSSettings(nameservers=(names.address,)), timeouts=budgets)
        async with HTTPServer() as server, create_session(settings, hooks=told.hooks) as session:
            for phase, url in (
                (Phase.DNS, "http://x.test/"),
                (Phase.TCP, f"http://{dead.host}:{dead.port}/"),
                (Phase.TLS, f"https://{stalled.host}:{stalled.port}/"),
                (Phase.REQUEST, server.url("/slow?seconds=3")),
            ):
                _, exc = await seconds(session.get(url))
                assert isinstance(exc, TimeoutError)
                assert isinstance(exc.__cause__, PhaseTimeoutError)
                assert (phase, 0.1) == (exc.__cause__.phase, exc.__cause__.budget)
                assert "0.10 s" in "".join(exc.__notes__)
                assert failed_phase(exc) is phase


async def test_a_failover_is_found_at_once() -> None:
    """When all addresses of a name fail, it is asked again at the next request (CASES 33)."""
    async with HTTPServer() as server:
        resolver = FixedResolver(("127.0.0.2",))
        async with create_session(hooks=(), connector=create_connector(resolver=resolver, force_close=True)) as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(server.url(host="x.test"))
            resolver.addresses = ("127.0.0.1",)
            assert await get(session, server.url(host="x.test")) == "hello\n"
            await get(session, server.url(host="x.test"))
    assert resolver.calls == ["x.test", "x.test"]


async def test_a_host_that_is_down_does_not_cost_a_lookup_per_request() -> None:
    """Its entry is evicted once a second at most (CASES 33)."""
    with FakeNameServer() as names, refusing_address() as (host, port):
        names.set("x.test", host)
        settings = Settings(dns=DNSSettings(nameservers=(names.address,)))
        async with create_session(settings, hooks=()) as session:
            for _ in range(20):
                with pytest.raises(aiohttp.ClientConnectorError):
                    await session.get(f"http://x.test:{port}/")
    assert 1 <= names.queries["x.test", "A"] <= 3


SETTINGS = Settings(timeouts=TimeoutSettings(total=5.0))


def test_settings_belong_to_no_loop() -> None:
    """Made at import, used in two runs one after the other, and in two loops at once (CASES 34)."""

    async def use() -> str:
        async with HTTPServer() as server, create_session(SETTINGS, hooks=()) as session:
            return await get(session, server.url())

    assert ["hello\n"] * 2 == [asyncio.run(use()) for _ in range(2)]
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(use()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["hello\n"] * 2


def test_without_a_loop_it_says_so() -> None:
    """One clear sentence (CASES 34)."""
    for create in (create_session, create_connector):
        with pytest.raises(RuntimeError, match="needs a running event loop: call it inside a coroutine"):
            create()


async def test_a_hook_must_be_callable() -> None:
    """A wrong hook is refused when the session is made."""
    with pytest.raises(SettingsError, match="each hook is a callable"):
        create_session(hooks=[1])  # type: ignore[list-item]


async def test_what_the_caller_passes_wins(told: Told) -> None:
    """Every keyword goes through, nothing that was passed is changed, and the type is aiohttp's own."""
    theirs = aiohttp.TraceConfig()
    configs = [theirs]
    timeout = aiohttp.ClientTimeout(total=7)
    async with create_session(
        hooks=told.hooks, trace_configs=configs, timeout=timeout, headers={"X-A": "b"}, raise_for_status=True
    ) as session:
        assert type(session) is aiohttp.ClientSession
        assert session.timeout is timeout
        assert session.trace_configs[0] is theirs
        assert len(session.trace_configs) == 2
        assert configs == [theirs]
        assert session.headers["X-A"] == "b"
    async with create_session(hooks=()) as silent:
        assert silent.trace_configs == []


async def test_a_connector_of_the_callers_keeps_what_it_is(told: Told) -> None:
    """It is instrumented in place: its object, class name, settings and ``isinstance`` stay."""

    class Own(aiohttp.TCPConnector):
        pass

    connector = Own(limit=7)
    async with HTTPServer() as server, create_session(hooks=told.hooks, connector=connector) as session:
        assert session.connector is connector
        assert isinstance(connector, Own)
        assert (Own.__qualname__, Own.__module__, 7) == (
            type(connector).__qualname__,
            type(connector).__module__,
            connector.limit,
        )
        await get(session, server.url())
    assert told.spans("TCP connect")


async def test_a_plain_session_with_our_trace_config(told: Told, throwaway_ca: Any) -> None:
    """The connector is instrumented at the first request; TLS of the session's own context is split too."""
    async with TLSServer(throwaway_ca.issue("127.0.0.1")) as server:
        connector = aiohttp.TCPConnector(ssl=throwaway_ca.client_context())
        config = create_trace_config(hooks=told.hooks)
        async with aiohttp.ClientSession(connector=connector, trace_configs=[config]) as session:
            await get(session, server.url())
    assert {"TCP connect", "TLS handshake", "connection setup", "GET", "response body"} == {
        span.name for span in told.spans()
    }


async def test_a_handler_that_fails_before_a_head() -> None:
    """A response that is no HTTP is aiohttp's own error, in the request phase."""

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"nonsense\r\n\r\n")
        await writer.drain()

    recorder = PhaseRecorder()
    async with raw_server(nonsense) as (host, port), create_session(hooks=[recorder]) as session:
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await session.get(f"http://{host}:{port}/")
    assert failed_phase(caught.value) is Phase.REQUEST
    recorder.check_invariants()
    assert [each.error_type for each in recorder.requests()] == ["aiohttp.ClientResponseError"]

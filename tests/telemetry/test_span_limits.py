from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler, SamplingResult

from aiohttp_hardened import Phase, TelemetrySettings
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.timing._hooks import Hooks
from tests.telemetry._driving import Body, driven, parent_of, span_id

if TYPE_CHECKING:
    pass


# --- sampling


def test_an_unsampled_request_builds_no_phase_span() -> None:
    """Where the head was not sampled, the tracer is asked for one span and no more."""
    asked: list[str] = []

    class Off(Sampler):
        def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
            asked.append(args[2])
            return ALWAYS_OFF.should_sample(*args, **kwargs)

        def get_description(self) -> str:
            return "off"

    with driven(sampler=Off()) as hooked:
        attempt = hooked.get()
        assert hooked.span_hook not in attempt.state
        assert hooked.spans == ()
        assert asked == ["GET"]
        assert hooked.point("http.client.request.duration").count == 1
        assert hooked.point("aiohttp.client.connection_setup.duration").count == 1


def test_a_connection_made_unsampled_is_not_linked_to() -> None:
    """A reused connection whose set-up has no span gives no link."""
    with driven() as hooked, driven(sampler=ALWAYS_OFF) as off:
        connection = off.get().connection
        attempt = hooked.begin()
        hooked.connect(attempt, connection)
        hooked.answer(attempt)
        assert hooked.span("GET").links == ()


# --- somebody else's request span


@pytest.mark.parametrize(
    ("request_spans", "elsewhere", "ours"),
    [
        ("auto", False, True),
        ("auto", True, False),
        ("always", False, True),
        ("always", True, True),
        ("never", False, False),
        ("never", True, False),
    ],
)
def test_there_is_one_client_span(request_spans: Any, elsewhere: bool, ours: bool) -> None:
    """Where another instrumentation makes the request span, phases are children of theirs."""
    with driven(TelemetrySettings(request_spans=request_spans)) as hooked:
        timing = hooked.timing()
        timing.traced_elsewhere = elsewhere
        with hooked.tracers.get_tracer("theirs").start_as_current_span("theirs"):
            attempt = hooked.begin(timing=timing)
            hooked.connect(attempt)
            body = Body()
            hooked.answer(attempt, body=body)
        body.complete()
        names = [span.name for span in hooked.spans]
        assert ("GET" in names) is ours
        parent = span_id(hooked.span("GET" if ours else "theirs"))
        assert parent_of(hooked.span("connection setup")) == parent
        assert parent_of(hooked.span("response body")) == parent


def test_phases_follow_a_remote_parent_that_is_sampled() -> None:
    """A parent that another process records takes children, one that it does not record takes none."""
    with driven(TelemetrySettings(request_spans="never")) as hooked:
        for flags, wanted in ((1, 1), (0, 0)):
            remote = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(flags))
            with trace.use_span(trace.NonRecordingSpan(remote)):
                hooked.connect(hooked.begin())
            setups = [span for span in hooked.spans if span.name == "connection setup"]
            assert len(setups) == wanted
            assert all(parent_of(span) == 2 for span in setups)
            hooked.exporter.clear()


def test_without_any_span_there_are_no_orphans() -> None:
    """Phases with nothing to belong to are not traced."""
    with driven(TelemetrySettings(request_spans="never")) as hooked:
        hooked.get()
        assert hooked.spans == ()


def test_two_span_hooks_are_siblings() -> None:
    """A second SpanHook does not make its span a child of the first one's."""
    with driven() as one, driven() as two:
        one.hooks = Hooks((one.span_hook, two.span_hook))
        one.get()
        assert [span.parent for span in (one.span("GET"), two.span("GET"))] == [None, None]
        assert parent_of(two.span("connection setup")) == span_id(two.span("GET"))


# --- failures of telemetry


class Raising:
    """A tracer that fails for some names, on start or on end."""

    def __init__(self, tracer: trace.Tracer, *names: str) -> None:
        self._tracer = tracer
        self._names = names

    def start_span(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name in self._names:
            raise RuntimeError(name)
        return self._tracer.start_span(name, *args, **kwargs)


class RaisingProvider(trace.TracerProvider):
    def __init__(self, provider: trace.TracerProvider, *names: str) -> None:
        self._provider = provider
        self._names = names

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        return Raising(self._provider.get_tracer(*args, **kwargs), *self._names)


@pytest.mark.usefixtures("hooks_raise")
@pytest.mark.parametrize(
    "name", ["GET", "DNS lookup", "TCP connect", "connection setup", "wait for connection", "response body"]
)
def test_a_tracer_that_raises_costs_its_span_only(name: str) -> None:
    """What a tracer raises is counted; other spans end, and metrics are complete."""
    before = figures.telemetry_errors
    with driven() as spare, driven(tracers=RaisingProvider(spare.tracers, name)) as hooked:
        attempt = hooked.begin()
        queue = attempt.enter(Phase.QUEUE)
        attempt.leave(queue)
        hooked.connect(attempt)
        body = Body()
        hooked.answer(attempt, body=body)
        body.complete()
        names = [span.name for span in spare.spans]
        assert name not in names
        if name != "GET":
            assert "GET" in names
        if name in ("DNS lookup", "TCP connect"):
            assert "connection setup" in names
        assert hooked.point("http.client.request.duration").count == 1
        assert hooked.point("http.client.active_requests").value == 0
        assert figures.telemetry_errors == before + 1


@pytest.mark.usefixtures("hooks_raise")
def test_a_processor_that_raises_changes_nothing() -> None:
    """A span processor's failure is contained like a tracer's."""
    before = figures.telemetry_errors
    with driven() as hooked:

        class Failing:
            def on_start(self, span: Any, parent_context: Any = None) -> None:
                """Take it."""

            def _on_ending(self, span: Any) -> None:
                """Take it."""

            def on_end(self, span: Any) -> None:
                raise RuntimeError

            def shutdown(self) -> None:
                """Do nothing."""

        hooked.tracers.add_span_processor(Failing())  # type: ignore[arg-type]
        hooked.get()
        assert hooked.point("http.client.active_requests").value == 0
    assert figures.telemetry_errors > before

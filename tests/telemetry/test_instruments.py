from __future__ import annotations

import gc
import logging
import subprocess
import sys
import textwrap
import weakref

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import View

from aiohttp_hardened import TelemetrySettings
from aiohttp_hardened.telemetry import MetricHook, SpanHook, _names
from aiohttp_hardened.telemetry._instruments import instruments_of
from tests.telemetry._driving import Driven, driven


def run(script: str, **environment: str) -> str:
    """Run a script in an interpreter of its own, which has global providers of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path), **environment},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_fifty_hooks_share_instruments_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Sessions are many; instruments are made once per provider, with whatever view a user has."""
    with driven(views=[View(instrument_name="http.client.*")]) as hooked, caplog.at_level(logging.DEBUG):
        hooks = [MetricHook(TelemetrySettings(max_hosts=n + 1), meter_provider=hooked.meters) for n in range(50)]
        hooked.get()
        assert hooked.metrics()
        assert len({id(hook._instruments) for hook in hooks}) == 1
    assert caplog.records == []


def test_the_first_settings_limit_the_hosts() -> None:
    """``max_hosts`` counts per provider, and the first hook says how many."""
    with driven(TelemetrySettings(max_hosts=1)) as hooked:
        later = MetricHook(TelemetrySettings(max_hosts=50), meter_provider=hooked.meters)
        assert [later._instruments.host(host) for host in ("a", "b", "a")] == ["a", "_OTHER", "a"]
    with driven() as other:
        assert other.metric_hook._instruments.host("b") == "b"


def test_a_provider_is_not_kept_alive() -> None:
    """A test suite that makes a provider per test leaks none."""
    meters = MeterProvider(shutdown_on_exit=False)
    MetricHook(meter_provider=meters)
    reference = weakref.ref(meters)
    del meters
    gc.collect()
    assert reference() is None


def test_scope_is_named_with_version_and_schema(hooked: Driven) -> None:
    """Whoever looks at a span or metric sees who made it."""
    hooked.get()
    scope = hooked.span("GET").instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.schema_url) == (_names.SCOPE, _names.SCHEMA_URL)
    data = hooked.reader.get_metrics_data()
    assert data is not None
    assert [each.scope.name for each in data.resource_metrics[0].scope_metrics] == [_names.SCOPE]


def test_what_is_declared_is_what_is_emitted(hooked: Driven) -> None:
    """Each metric has the declared unit, description and kind, and no attribute beside the declared ones."""
    connection = hooked.get().connection
    assert connection is not None
    connection.close()
    declared = {metric.name: metric for metric in _names.METRICS}
    kinds = {"histogram": "Histogram", "gauge": "Gauge", "counter": "Sum", "up_down_counter": "Sum"}
    for name, metric in hooked.metrics().items():
        assert (metric.unit, metric.description) == (declared[name].unit, declared[name].description)
        assert type(metric.data).__name__ == kinds[declared[name].kind]
        if declared[name].kind in ("counter", "up_down_counter"):
            assert metric.data.is_monotonic is (declared[name].kind == "counter")
        for point in metric.data.data_points:
            assert set(point.attributes) <= set(declared[name].attributes), name


GLOBAL = """
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from tests.telemetry._driving import Driven

    class Global(Driven):
        def __init__(self):
            from aiohttp_hardened.telemetry._defaults import default_hooks
            from aiohttp_hardened.timing._hooks import Hooks
            from aiohttp_hardened import DEFAULTS
            self.span_hook, self.metric_hook = default_hooks(DEFAULTS.telemetry)
            self.hooks = Hooks((self.span_hook, self.metric_hook))

    def set_providers():
        exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(tracers)
        metrics.set_meter_provider(MeterProvider([reader]))
        return exporter, reader

    def numbers(reader):
        return {
            metric.name: [getattr(each, "value", None) or getattr(each, "count", 0) for each in metric.data.data_points]
            for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics
            for metric in scope.metrics
        }
"""


def test_a_session_may_come_before_the_providers() -> None:
    """Hooks made first use the providers that are set later; what was counted meanwhile is not lost."""
    out = run(
        GLOBAL
        + """
    early = Global()
    pending = early.begin()
    early.hooks.dns_cache_hit(pending)
    exporter, reader = set_providers()
    late = Global()
    early.get()
    late.get()
    found = numbers(reader)
    print([span.name for span in exporter.get_finished_spans()].count("GET"))
    print(found["http.client.request.duration"], found["http.client.active_requests"])
    print(found["aiohttp.client.dns_cache.lookups"])
    (first, *_) = [m for s in reader.get_metrics_data().resource_metrics[0].scope_metrics for m in s.metrics
                   if m.name == "http.client.request.duration"]
    print(first.data.data_points[0].explicit_bounds[0])
    """
    )
    assert out.splitlines() == ["2", "[2] [1]", "[1, 2, 0, 0, 0]", "0.0005"]


def test_the_global_provider_is_the_same_when_it_is_named() -> None:
    """Naming the global provider makes no second set of instruments, before or after it is set."""
    out = run(
        GLOBAL
        + """
    from aiohttp_hardened.telemetry import MetricHook
    from aiohttp_hardened.telemetry._instruments import instruments_of
    early = MetricHook()
    print(MetricHook(meter_provider=MeterProvider(shutdown_on_exit=False))._instruments is early._instruments)
    set_providers()
    named = MetricHook(meter_provider=metrics.get_meter_provider())
    late = MetricHook()
    print(early._instruments is named._instruments is late._instruments is instruments_of(None))
    print(MetricHook(meter_provider=MeterProvider(shutdown_on_exit=False))._instruments is late._instruments)
    """
    )
    assert out.split() == ["False", "True", "False"]


def test_contained_failures_are_counted_without_a_metric_hook() -> None:
    """``aiohttp.client.telemetry.errors`` exists at 0 through the global meter, whoever listens."""
    out = run(
        GLOBAL
        + """
    from aiohttp_hardened.telemetry._metrics import observe_telemetry_errors
    observe_telemetry_errors()
    exporter, reader = set_providers()
    print(numbers(reader)["aiohttp.client.telemetry.errors"])
    from aiohttp_hardened.timing._figures import figures
    figures.count_telemetry_error()
    print(numbers(reader)["aiohttp.client.telemetry.errors"])
    """
    )
    assert out.split() == ["[0]", "[1]"]


def test_watching_errors_says_nothing_of_the_limit() -> None:
    """The limit of hosts is the first MetricHook's, not that of whoever made the instruments."""
    meters = MeterProvider(shutdown_on_exit=False)
    instruments_of(meters)
    MetricHook(TelemetrySettings(max_hosts=1), meter_provider=meters)
    assert [instruments_of(meters).host(host) for host in ("a", "b")] == ["a", "_OTHER"]


def test_default_hooks_follow_environment_and_providers() -> None:
    """The default hooks are shared while nothing changes, and made anew when something does."""
    out = run(
        """
    import os
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from aiohttp_hardened import DEFAULTS, TelemetrySettings
    from aiohttp_hardened.telemetry._defaults import default_hooks
    first = default_hooks(DEFAULTS.telemetry)
    print(default_hooks(TelemetrySettings()) is first)
    os.environ["OTEL_PYTHON_EXCLUDED_URLS"] = "x"
    second = default_hooks(DEFAULTS.telemetry)
    trace.set_tracer_provider(TracerProvider())
    print(len({first, second, default_hooks(DEFAULTS.telemetry)}))
    """
    )
    assert out.split() == ["True", "3"]


def test_hooks_are_made_at_a_small_price() -> None:
    """A session's hooks need no environment parsed again and no instrument made again."""
    with driven() as hooked:
        assert SpanHook()._environment is SpanHook()._environment
        assert MetricHook(meter_provider=hooked.meters)._histograms is hooked.metric_hook._histograms

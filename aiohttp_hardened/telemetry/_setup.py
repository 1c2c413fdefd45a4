"""SDK providers for an application that has none; the only library file that imports the SDK.

No views are installed: the bucket edges travel with our instruments as advice, which
holds unless a user's view or ``OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION``
says otherwise. A view that names ``http.client.request.duration`` would also meet the
instrument of that name which other instrumentations have, and the SDK warns of that.
"""

from __future__ import annotations

import importlib
import os
import uuid
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics, trace

from aiohttp_hardened.telemetry._instruments import is_proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_TRACES: Final = "OTEL_TRACES_EXPORTER"
_METRICS: Final = "OTEL_METRICS_EXPORTER"
_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"


def setup(**resource_attributes: str) -> None:
    """Give an application that has no OpenTelemetry providers the SDK's.

    Follows the standard variables: ``OTEL_TRACES_EXPORTER`` (``otlp``, ``console`` or
    ``none``), ``OTEL_METRICS_EXPORTER`` (those, or ``prometheus``), everything
    ``OTEL_EXPORTER_OTLP_*``, ``OTEL_TRACES_SAMPLER``, ``OTEL_METRIC_EXPORT_INTERVAL``,
    ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_SERVICE_NAME``, ``OTEL_SDK_DISABLED``.
    A provider that is set already is left alone, and so a second call does nothing.
    Call it in the worker, after a fork: exporters have threads.

    Args:
        **resource_attributes: Added to the resource, with ``_`` for ``.``. Each process
            gets a ``service.instance.id`` of its own unless the environment names one.

    Raises:
        ModuleNotFoundError: The exporter's extra (``otlp``, ``prometheus``) is missing.
        ValueError: An exporter or protocol is named that this does not know.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return
    resource = _resource(resource_attributes)
    # Both are made before either is set: what raises leaves nothing half done.
    tracers = _tracer_provider(resource) if is_proxy(trace.get_tracer_provider()) else None
    meters = _meter_provider(resource) if is_proxy(metrics.get_meter_provider()) else None
    if tracers is not None:
        trace.set_tracer_provider(tracers)
    if meters is not None:
        metrics.set_meter_provider(meters)


def _resource(attributes: dict[str, str]) -> Resource:
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  (only who calls setup() pays for the SDK)

    named = {key.replace("_", "."): value for key, value in attributes.items()}
    return Resource({"service.instance.id": str(uuid.uuid4())}).merge(Resource.create(named))


def _tracer_provider(resource: Resource) -> TracerProvider:
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter  # noqa: PLC0415

    known: dict[str, Callable[[], SpanExporter]] = {
        "otlp": lambda: _otlp("TRACES", "trace_exporter", "OTLPSpanExporter"),
        "console": ConsoleSpanExporter,
    }
    exporters = [make() for make in _chosen(_TRACES, known)]
    provider = TracerProvider(resource=resource)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _meter_provider(resource: Resource) -> MeterProvider:
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader  # noqa: PLC0415

    known: dict[str, Callable[[], MetricReader]] = {
        "otlp": lambda: PeriodicExportingMetricReader(_otlp("METRICS", "metric_exporter", "OTLPMetricExporter")),
        "console": lambda: PeriodicExportingMetricReader(ConsoleMetricExporter()),
        "prometheus": _prometheus,
    }
    return MeterProvider([make() for make in _chosen(_METRICS, known)], resource)


def _chosen(variable: str, known: dict[str, Any]) -> list[Any]:
    names = [each.strip().lower() for each in (os.environ.get(variable) or "otlp").split(",")]
    for name in names:
        if name not in ("", "none") and name not in known:
            raise ValueError(f"{variable} names {name!r}; setup() knows {', '.join(known)} and none")
    return [known[name] for name in names if name in known]


def _otlp(signal: str, module: str, name: str) -> Any:
    protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or os.environ.get(_PROTOCOL) or "http/protobuf"
    packages = {"http/protobuf": "http", "grpc": "grpc"}
    if protocol not in packages:
        raise ValueError(f"{_PROTOCOL} is {protocol!r}; setup() knows {' and '.join(packages)}")
    path = f"opentelemetry.exporter.otlp.proto.{packages[protocol]}"
    try:
        return getattr(importlib.import_module(f"{path}.{module}"), name)()
    except ModuleNotFoundError as exc:
        wanted = (
            "the extra: pip install 'aiohttp-hardened[otlp]'"
            if protocol != "grpc"
            else "its package: pip install opentelemetry-exporter-otlp-proto-grpc"
        )
        raise ModuleNotFoundError(f"exporting by OTLP over {protocol} needs {wanted}") from exc


def _prometheus() -> MetricReader:
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415
        from prometheus_client import start_http_server  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError(
            "serving metrics for Prometheus needs the extra: pip install 'aiohttp-hardened[prometheus]'"
        ) from exc
    host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "localhost")
    port = int(os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "9464"))
    server, thread = start_http_server(port, host)

    class ServedReader(PrometheusMetricReader):
        """A reader whose server ends with it."""

        def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
            super().shutdown(timeout_millis, **kwargs)  # pyright: ignore[reportUnknownMemberType]  (untyped upstream)
            server.shutdown()
            server.server_close()
            thread.join()

    return ServedReader()

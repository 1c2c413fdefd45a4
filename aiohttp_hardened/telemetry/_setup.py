"""SDK providers for an application that has none; the only library file that imports the SDK."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics, trace

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource


_TRACES: Final = "OTEL_TRACES_EXPORTER"
_METRICS: Final = "OTEL_METRICS_EXPORTER"


def setup(**resource_attributes: str) -> None:
    """Give an application that has no OpenTelemetry providers the SDK's.

    Follows the standard variables: ``OTEL_TRACES_EXPORTER`` (``otlp`` or ``none``),
    ``OTEL_METRICS_EXPORTER`` (``otlp``, ``prometheus`` or ``none``), everything
    ``OTEL_EXPORTER_OTLP_*``, ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_SERVICE_NAME``,
    ``OTEL_SDK_DISABLED``. A provider that is set already is left alone, and so a second
    call does nothing. Call it in the worker, after a fork: exporters have threads.

    Args:
        **resource_attributes: Added to the resource, with ``_`` for ``.``. Each process
            gets a ``service.instance.id`` of its own unless the environment names one.

    Raises:
        ModuleNotFoundError: The exporter's extra (``otlp``, ``prometheus``) is missing.
        ValueError: An exporter is named that this does not know.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return
    resource = _resource(resource_attributes)
    if type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider":
        _set_tracer_provider(resource)
    if type(metrics.get_meter_provider()).__name__ == "_ProxyMeterProvider":
        _set_meter_provider(resource)


def _resource(attributes: dict[str, str]) -> Resource:
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  (only who calls setup() pays for the SDK)

    named = {key.replace("_", "."): value for key, value in attributes.items()}
    return Resource({"service.instance.id": str(uuid.uuid4())}).merge(Resource.create(named))


def _set_tracer_provider(resource: Resource) -> None:
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=resource)
    for name in _exporters(_TRACES):
        if name != "otlp":
            raise ValueError(f"{_TRACES} names {name!r}; setup() knows otlp and none")
        provider.add_span_processor(BatchSpanProcessor(_otlp("trace_exporter", "OTLPSpanExporter")))
    trace.set_tracer_provider(provider)


def _set_meter_provider(resource: Resource) -> None:
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader  # noqa: PLC0415

    readers: list[MetricReader] = []
    for name in _exporters(_METRICS):
        if name == "otlp":
            readers.append(PeriodicExportingMetricReader(_otlp("metric_exporter", "OTLPMetricExporter")))
        elif name == "prometheus":
            readers.append(_prometheus())
        else:
            raise ValueError(f"{_METRICS} names {name!r}; setup() knows otlp, prometheus and none")
    metrics.set_meter_provider(MeterProvider(readers, resource))


def _exporters(variable: str) -> list[str]:
    names = [each.strip().lower() for each in os.environ.get(variable, "otlp").split(",")]
    return [each for each in names if each not in ("", "none")]


def _otlp(module: str, name: str) -> Any:
    import importlib  # noqa: PLC0415

    try:
        return getattr(importlib.import_module(f"opentelemetry.exporter.otlp.proto.http.{module}"), name)()
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError("exporting by OTLP needs the extra: pip install 'aiohttp-hardened[otlp]'") from exc


def _prometheus() -> Any:
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415
        from prometheus_client import start_http_server  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError(
            "serving metrics for Prometheus needs the extra: pip install 'aiohttp-hardened[prometheus]'"
        ) from exc
    host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "localhost")
    port = int(os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "9464"))
    start_http_server(port, host)
    return PrometheusMetricReader()

"""The hooks of whoever names none: spans and metrics through the global providers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace

from aiohttp_hardened.telemetry._environment import raw_environment
from aiohttp_hardened.telemetry._metrics import MetricHook
from aiohttp_hardened.telemetry._spans import SpanHook

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from aiohttp_hardened._settings import TelemetrySettings


def default_hooks(settings: TelemetrySettings) -> tuple[SpanHook, MetricHook]:
    """Return the hooks for some settings; the same ones while environment and providers stay the same."""
    return _hooks(settings, raw_environment(), trace.get_tracer_provider(), metrics.get_meter_provider())


@lru_cache(maxsize=8)
def _hooks(
    settings: TelemetrySettings, _environment: tuple[str | None, ...], _tracers: TracerProvider, _meters: MeterProvider
) -> tuple[SpanHook, MetricHook]:
    return SpanHook(settings), MetricHook(settings)

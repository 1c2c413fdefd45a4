"""Hooks that tell OpenTelemetry of the phases."""

from aiohttp_hardened.telemetry._metrics import MetricHook
from aiohttp_hardened.telemetry._setup import setup
from aiohttp_hardened.telemetry._spans import SpanHook

__all__ = ["MetricHook", "SpanHook", "setup"]

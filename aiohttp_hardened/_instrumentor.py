"""The instrumentor that ``opentelemetry-instrument`` finds by its entry point; needs the extra ``auto``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined] # untyped upstream

from aiohttp_hardened._instrument import instrument, uninstrument
from aiohttp_hardened._settings import DEFAULTS
from aiohttp_hardened.telemetry import MetricHook, SpanHook

if TYPE_CHECKING:
    from collections.abc import Collection

    from aiohttp_hardened._settings import Settings

_AIOHTTP: Final = ("aiohttp >= 3.14.1, < 4",)
"""As pyproject.toml requires it."""


class AiohttpHardenedInstrumentor(BaseInstrumentor):  # type: ignore[misc] # same
    """Call ``instrument()`` and ``uninstrument()`` where OpenTelemetry wants an instrumentor.

    ``instrument()`` takes ``tracer_provider``, ``meter_provider`` (the global ones by default)
    and ``settings``. Beside contrib's instrumentor for aiohttp there is one request span, theirs.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what must be installed for this to be of use."""
        return _AIOHTTP

    def _instrument(self, **options: Any) -> None:
        settings: Settings = options.get("settings") or DEFAULTS
        tracers, meters = options.get("tracer_provider"), options.get("meter_provider")
        if tracers is None and meters is None:
            instrument(settings)
            return
        telemetry = settings.telemetry
        instrument(
            settings,
            hooks=[SpanHook(telemetry, tracer_provider=tracers), MetricHook(telemetry, meter_provider=meters)],
        )

    def _uninstrument(self, **_: Any) -> None:
        uninstrument()

"""A server's handshakes: one histogram, and one span each.

The span is INTERNAL. It stands at the root, for no request exists yet, and backends
that count SERVER spans would take it for one; .NET's ``TlsHandshake`` activity is
INTERNAL too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode

from aiohttp_hardened.telemetry import _names
from aiohttp_hardened.telemetry._environment import package_version, raw_environment, read_environment
from aiohttp_hardened.telemetry._instruments import instruments_of

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from aiohttp_hardened.timing._handshake import HandshakeRecord


class ServerHandshakeHook:
    """Tell OpenTelemetry of a server's handshakes.

    Environment variables are read when the hook is made.

    Args:
        tracer_provider: The provider; ``None``: the global one, whenever it is set.
        meter_provider: The same for metrics.
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._disabled = read_environment().disabled
        self._tracer = trace.get_tracer(
            _names.SCOPE, package_version() or "", tracer_provider=tracer_provider, schema_url=_names.SCHEMA_URL
        )
        self._duration = instruments_of(meter_provider).histograms[_names.METRIC_SERVER_TLS_DURATION]

    def __call__(self, record: HandshakeRecord) -> None:
        """Write the span and record the duration of a handshake that is over."""
        if self._disabled:
            return
        # Never the context in which the site was started: that span is long over.
        context = Context()
        span = self._tracer.start_span(_names.SPAN_TLS, context, SpanKind.INTERNAL, start_time=record.start_ns)
        try:
            if span.is_recording():
                span.set_attributes(dict(record.attributes))
                if record.error_type is not None:
                    span.set_attribute(_names.ERROR_TYPE, record.error_type)
                    span.set_status(StatusCode.ERROR, record.error_type)
            # Under the span's context: an exemplar carries its trace.
            self._duration.record(record.duration, _measured(record), trace.set_span_in_context(span, context))
        finally:
            span.end(record.end_ns)


def _measured(record: HandshakeRecord) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for key in (_names.TLS_PROTOCOL_VERSION, _names.TLS_RESUMED):
        if key in record.attributes:
            attributes[key] = record.attributes[key]
    if record.error_type is not None:
        attributes[_names.ERROR_TYPE] = record.error_type
    return attributes


def default_handshake_hook() -> ServerHandshakeHook:
    """Return the hook of whoever names none; the same one while environment and providers stay the same."""
    return _hook(raw_environment(), trace.get_tracer_provider(), metrics.get_meter_provider())


@lru_cache(maxsize=8)
def _hook(
    _environment: tuple[str | None, ...], _tracers: TracerProvider, _meters: MeterProvider
) -> ServerHandshakeHook:
    return ServerHandshakeHook()

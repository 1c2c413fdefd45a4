"""Spans: one per send attempt, and its phases under it, written when they are over.

Nothing is ever attached: parents are passed explicitly. No exception event is written,
for what an exception says may hold secrets; ``error.type`` and the status say what failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.trace import Link, SpanKind, StatusCode

from aiohttp_hardened._settings import DEFAULTS
from aiohttp_hardened.telemetry import _names
from aiohttp_hardened.telemetry._decision import Decision, decide
from aiohttp_hardened.telemetry._environment import package_version, read_environment
from aiohttp_hardened.telemetry._propagation import propagate_trace
from aiohttp_hardened.telemetry._redact import redact_url
from aiohttp_hardened.timing._phase import Phase, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from aiohttp_hardened._settings import TelemetrySettings
    from aiohttp_hardened.timing._phase import PhaseRecord
    from aiohttp_hardened.timing._request import Attempt

_NAMES: Final = {
    Phase.QUEUE: _names.SPAN_QUEUE,
    Phase.SETUP: _names.SPAN_SETUP,
    Phase.DNS: _names.SPAN_DNS,
    Phase.TCP: _names.SPAN_TCP,
    Phase.TUNNEL: _names.SPAN_TUNNEL,
    Phase.TLS: _names.SPAN_TLS,
    Phase.BODY: _names.SPAN_BODY,
}
_WITH_SERVER: Final = frozenset({Phase.QUEUE, Phase.SETUP, Phase.TUNNEL})
_INSIDE_SETUP: Final = frozenset({Phase.DNS, Phase.TCP, Phase.TUNNEL, Phase.TLS})


class _Trace:
    """What is kept of one attempt from record to record; only of those that are recorded."""

    __slots__ = ("context", "link_to", "pending", "span")

    def __init__(self, span: Span | None, context: Context, link_to: SpanContext) -> None:
        self.span = span
        """Our request span; ``None``: another instrumentation makes it."""
        self.context = context
        """What phases are children of."""
        self.link_to = link_to
        self.pending: list[PhaseRecord] = []
        """Phases whose parent, the set-up, is not over yet."""


class SpanHook:
    """Write spans through OpenTelemetry.

    Environment variables are read when the hook is made.

    Args:
        settings: What is told and what is kept back.
        tracer_provider: The provider; ``None``: the global one, whenever it is set.
    """

    def __init__(
        self, settings: TelemetrySettings = DEFAULTS.telemetry, *, tracer_provider: TracerProvider | None = None
    ) -> None:
        self._settings = settings
        self._environment = read_environment()
        self._tracer = trace.get_tracer(
            _names.SCOPE, package_version() or "", tracer_provider=tracer_provider, schema_url=_names.SCHEMA_URL
        )

    def on_request_start(self, attempt: Attempt) -> None:
        """Start the span of a send attempt and inject its context into the headers."""
        context = get_current()
        decision = decide(attempt, self._environment)
        settings = self._settings
        if decision is not Decision.TOLD:
            if decision is Decision.SUPPRESSED:
                propagate_trace(attempt, context, settings.propagate_to)
            attempt.ignore(self)
            return
        if settings.request_spans == "never" or (settings.request_spans == "auto" and attempt.request.traced_elsewhere):
            self._follow(attempt, context)
        else:
            name, attributes = self._describe(attempt)
            span = self._tracer.start_span(name, context, SpanKind.CLIENT, attributes, start_time=attempt.start_ns)
            attempt.context = context = trace.set_span_in_context(span, context)
            if span.is_recording():
                attempt.state[self] = _Trace(span, context, span.get_span_context())
            else:
                attempt.ignore(self)
        propagate_trace(attempt, context, settings.propagate_to)

    def _follow(self, attempt: Attempt, context: Context) -> None:
        """Let phases be children of the current span; another instrumentation's, if there is one."""
        attempt.context = context
        span = trace.get_current_span(context)
        span_context = span.get_span_context()
        # A remote parent is not recording here, but may be sampled.
        if span.is_recording() or (span_context.is_valid and span_context.trace_flags.sampled):
            attempt.state[self] = _Trace(None, context, span_context)
        else:
            attempt.ignore(self)

    def _describe(self, attempt: Attempt) -> tuple[str, dict[str, Any]]:
        """Return a request span's name, and the attributes that samplers and processors see at its start."""
        environment = self._environment
        name = method = attempt.method
        if method in environment.methods:
            attributes = _base_attributes(method, attempt.server_address, attempt.server_port).copy()
        else:
            name = _names.UNKNOWN_METHOD_SPAN
            attributes = _base_attributes(_names.OTHER, attempt.server_address, attempt.server_port).copy()
            attributes[_names.HTTP_REQUEST_METHOD_ORIGINAL] = method
        attributes[_names.URL_FULL] = redact_url(str(attempt.url), self._settings)
        if attempt.resend_count:
            attributes[_names.HTTP_REQUEST_RESEND_COUNT] = attempt.resend_count
        given = attempt.request.trace_request_ctx
        if given is not None and (template := _template(given)) is not None:
            attributes[_names.URL_TEMPLATE] = template
            name = f"{name} {template}"
        if environment.request_headers is not None:
            captured = environment.request_headers
            attributes.update(captured.attributes(_names.REQUEST_HEADER, attempt.headers, self._settings))
        return name, attributes

    def __call__(self, record: PhaseRecord) -> None:
        """Write the span of a phase that is over."""
        kept: _Trace | None = record.attempt.state.get(self)
        if kept is None:
            return
        if isinstance(record, RequestRecord):
            if kept.span is not None:
                self._end_request(record, kept.span)
        elif record.background:
            self._write(record, Context(), [Link(kept.link_to)])
        elif record.phase in _INSIDE_SETUP:
            kept.pending.append(record)
        elif record.phase is Phase.SETUP:
            self._write_setup(record, kept)
        else:
            self._write(record, kept.context)

    def _write_setup(self, record: PhaseRecord, kept: _Trace) -> None:
        span = self._start_phase(record, kept.context)
        try:
            inside = trace.set_span_in_context(span, kept.context)
            connection = record.attempt.connection
            if connection is not None:
                connection.state[self] = span.get_span_context()
            for child in kept.pending:
                self._write(child, inside)
        finally:
            span.end(record.end_ns)

    def _write(self, record: PhaseRecord, parent: Context, links: list[Link] | None = None) -> None:
        self._start_phase(record, parent, links).end(record.end_ns)

    def _start_phase(self, record: PhaseRecord, parent: Context, links: list[Link] | None = None) -> Span:
        phase = record.phase
        attributes: dict[str, Any] = dict(record.attributes)
        if phase in _WITH_SERVER:
            attributes[_names.SERVER_ADDRESS] = record.server_address
            if record.server_port is not None:
                attributes[_names.SERVER_PORT] = record.server_port
        elif phase is Phase.TLS:
            attributes[_names.SERVER_ADDRESS] = record.server_address
        error_type = record.error_type
        if error_type is not None:
            attributes[_names.ERROR_TYPE] = error_type
        if record.cancelled:
            attributes[_names.CANCELLED] = True
        name = _NAMES[phase]
        if attributes.get(_names.NETWORK_PROTOCOL_NAME) == _names.WEBSOCKET:
            name = _names.SPAN_WEBSOCKET
        span = self._tracer.start_span(name, parent, SpanKind.INTERNAL, attributes, links, start_time=record.start_ns)
        for event in record.events:
            span.add_event(event.name, dict(event.attributes), event.time_ns)
        if error_type is not None:
            span.set_status(StatusCode.ERROR, error_type)
        return span

    def _end_request(self, record: RequestRecord, span: Span) -> None:
        try:
            span.set_attributes(self._outcome(record))
            if record.error_type is not None:
                # The convention wants no description where the status code says it all.
                span.set_status(StatusCode.ERROR, None if record.status_code is not None else record.error_type)
            if record.reused and record.attempt.connection is not None:
                made_by = record.attempt.connection.state.get(self)
                if made_by is not None:
                    span.add_link(made_by)
        finally:
            span.end(record.end_ns)

    def _outcome(self, record: RequestRecord) -> dict[str, Any]:
        attributes: dict[str, Any] = dict(record.attributes)
        if record.status_code is not None:
            attributes[_names.HTTP_STATUS_CODE] = record.status_code
        if record.protocol_version is not None:
            attributes[_names.NETWORK_PROTOCOL_VERSION] = record.protocol_version
        if record.error_type is not None:
            attributes[_names.ERROR_TYPE] = record.error_type
        if record.cancelled:
            attributes[_names.CANCELLED] = True
        captured = self._environment.response_headers
        if captured is not None and record.response_headers is not None:
            attributes.update(captured.attributes(_names.RESPONSE_HEADER, record.response_headers, self._settings))
        return attributes


@lru_cache(maxsize=1024)
def _base_attributes(method: str, host: str, port: int | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {_names.HTTP_REQUEST_METHOD: method, _names.SERVER_ADDRESS: host}
    if port is not None:
        attributes[_names.SERVER_PORT] = port
    return attributes


def _template(trace_request_ctx: object) -> str | None:
    """Read ``url.template`` where the caller put it."""
    if isinstance(trace_request_ctx, Mapping):
        template = cast("Mapping[object, object]", trace_request_ctx).get(_names.URL_TEMPLATE)
        if isinstance(template, str):
            return template
    return None

"""Spans: one per send attempt, and its phases under it, written when they are over."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from multidict import istr
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import inject
from opentelemetry.trace import Link, SpanKind, StatusCode

from aiohttp_hardened._settings import DEFAULTS
from aiohttp_hardened.telemetry import _names
from aiohttp_hardened.telemetry._decision import decide
from aiohttp_hardened.telemetry._environment import read_environment
from aiohttp_hardened.telemetry._redact import redact_url
from aiohttp_hardened.timing._phase import Phase, PhaseRecord, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from aiohttp_hardened._settings import TelemetrySettings
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
            _names.SCOPE, tracer_provider=tracer_provider, schema_url=_names.SCHEMA_URL
        )

    def on_request_start(self, attempt: Attempt) -> None:
        """Start the span of a send attempt and inject its context into the headers."""
        decision = decide(attempt, self._environment)
        if not decision.told:
            return
        settings = self._settings
        context = decision.context
        if settings.request_spans == "never" or (
            settings.request_spans == "auto" and attempt.request.traced_elsewhere
        ):
            # Theirs is current here: aiohttp sent ``on_request_start`` before it connects.
            current = trace.get_current_span()
            attempt.context = trace.set_span_in_context(current, context)
            if current.is_recording():
                attempt.state[self] = _Trace(None, attempt.context, current.get_span_context())
            return
        method = self._environment.method(attempt.method)
        name, attributes = self._start(attempt, method)
        span = self._tracer.start_span(name, context, SpanKind.CLIENT, attributes, start_time=attempt.start_ns)
        attempt.context = context = trace.set_span_in_context(span, context)
        if span.is_recording():
            attempt.state[self] = _Trace(span, context, span.get_span_context())
        self._propagate(attempt, context)

    def _start(self, attempt: Attempt, method: str) -> tuple[str, dict[str, Any]]:
        attributes: dict[str, Any] = {
            _names.HTTP_REQUEST_METHOD: method,
            _names.SERVER_ADDRESS: attempt.server_address,
            _names.URL_FULL: redact_url(attempt.url, self._settings),
        }
        if attempt.server_port is not None:
            attributes[_names.SERVER_PORT] = attempt.server_port
        name = method
        if method == _names.OTHER:
            name = _names.UNKNOWN_METHOD_SPAN
            attributes[_names.HTTP_REQUEST_METHOD_ORIGINAL] = attempt.method
        if attempt.resend_count:
            attributes[_names.HTTP_REQUEST_RESEND_COUNT] = attempt.resend_count
        template = _template(attempt.request.trace_request_ctx)
        if template is not None:
            attributes[_names.URL_TEMPLATE] = template
            name = f"{name} {template}"
        if self._environment.request_headers.captured is not None:
            attributes.update(self._environment.request_headers.attributes(_names.REQUEST_HEADER, attempt.headers))
        return name, attributes

    def _propagate(self, attempt: Attempt, context: Context) -> None:
        """Inject trace context, unless the caller's own is there, the host is not meant to see it, or the origin changed."""
        propagate_to = self._settings.propagate_to
        if attempt.cross_origin or (propagate_to is not None and not _is_allowed(attempt.server_address, propagate_to)):
            return
        headers = attempt.headers
        state = attempt.request.state
        if state.get(_INJECTED) is headers:
            # A middleware sends the same headers again: what is in them is ours, of the attempt before.
            inject(headers, context)
        elif _TRACEPARENT not in headers and _TRACESTATE not in headers:
            inject(headers, context)
            state[_INJECTED] = headers

    def __call__(self, record: PhaseRecord) -> None:
        """Write the span of a phase that is over."""
        kept: _Trace | None = record.attempt.state.get(self)
        if kept is None:
            return
        if record.background:
            self._write(record, Context(), [Link(kept.link_to)])
        elif isinstance(record, RequestRecord):
            self._end_request(record, kept)
        elif record.phase in _INSIDE_SETUP:
            kept.pending.append(record)
        elif record.phase is Phase.SETUP:
            self._write_setup(record, kept)
        else:
            self._write(record, kept.context)

    def _write_setup(self, record: PhaseRecord, kept: _Trace) -> None:
        span = self._start_phase(record, kept.context)
        inside = trace.set_span_in_context(span, kept.context)
        for child in kept.pending:
            self._write(child, inside)
        kept.pending.clear()
        connection = record.attempt.connection
        if connection is not None:
            connection.state[self] = span.get_span_context()
        span.end(record.end_ns)

    def _write(self, record: PhaseRecord, parent: Context, links: list[Link] | None = None) -> None:
        self._start_phase(record, parent, links).end(record.end_ns)

    def _start_phase(self, record: PhaseRecord, parent: Context, links: list[Link] | None = None) -> Span:
        attributes: dict[str, Any] = dict(record.attributes)
        if record.phase in _WITH_SERVER:
            attributes[_names.SERVER_ADDRESS] = record.server_address
            if record.server_port is not None:
                attributes[_names.SERVER_PORT] = record.server_port
        elif record.phase is Phase.TLS:
            attributes[_names.SERVER_ADDRESS] = record.server_address
        if record.error_type is not None:
            attributes[_names.ERROR_TYPE] = record.error_type
        if record.cancelled:
            attributes[_names.CANCELLED] = True
        span = self._tracer.start_span(
            _NAMES[record.phase], parent, SpanKind.INTERNAL, attributes, links, start_time=record.start_ns
        )
        for event in record.events:
            span.add_event(event.name, dict(event.attributes), event.time_ns)
        if record.error_type is not None:
            span.set_status(StatusCode.ERROR, record.error_type)
        return span

    def _end_request(self, record: RequestRecord, kept: _Trace) -> None:
        span = kept.span
        if span is None:
            return
        attributes: dict[str, Any] = dict(record.attributes)
        if record.status_code is not None:
            attributes[_names.HTTP_STATUS_CODE] = record.status_code
        if record.protocol_version is not None:
            attributes[_names.NETWORK_PROTOCOL_VERSION] = record.protocol_version
        if record.cancelled:
            attributes[_names.CANCELLED] = True
        if record.response_headers is not None and self._environment.response_headers.captured is not None:
            attributes.update(
                self._environment.response_headers.attributes(_names.RESPONSE_HEADER, record.response_headers)
            )
        if record.error_type is not None:
            attributes[_names.ERROR_TYPE] = record.error_type
            # The convention wants no description where the status code says it all.
            span.set_status(StatusCode.ERROR, None if record.status_code is not None else record.error_type)
        span.set_attributes(attributes)
        if record.reused and record.attempt.connection is not None:
            made_by = record.attempt.connection.state.get(self)
            if made_by is not None:
                span.add_link(made_by)
        span.end(record.end_ns)


_INJECTED: Final = "injected"
_TRACEPARENT: Final = istr("traceparent")
_TRACESTATE: Final = istr("tracestate")


def _template(trace_request_ctx: object) -> str | None:
    """Read ``url.template`` where the caller put it."""
    if isinstance(trace_request_ctx, dict):
        template = trace_request_ctx.get(_names.URL_TEMPLATE)
        return template if isinstance(template, str) else None
    return None


@lru_cache(maxsize=512)
def _is_allowed(host: str, hosts: tuple[str, ...] | None) -> bool:
    if hosts is None:
        return True
    return any(host == each or (each.startswith(".") and host.endswith(each)) for each in hosts)



"""Metrics: a histogram per phase, and plain numbers that are observed."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import get_current

from aiohttp_hardened._settings import DEFAULTS
from aiohttp_hardened.telemetry import _names
from aiohttp_hardened.telemetry._decision import Decision, decide
from aiohttp_hardened.telemetry._environment import read_environment
from aiohttp_hardened.telemetry._instruments import instruments_of, observe_telemetry_errors
from aiohttp_hardened.telemetry._observed import server_attributes
from aiohttp_hardened.timing._phase import Phase, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from aiohttp_hardened._settings import TelemetrySettings
    from aiohttp_hardened.timing._connection import Connection
    from aiohttp_hardened.timing._phase import PhaseRecord
    from aiohttp_hardened.timing._request import Attempt

__all__ = ["MetricHook", "observe_telemetry_errors"]

_TIMED_LOOKUPS: Final = frozenset({_names.SOURCE_LOOKUP, _names.SOURCE_SYSTEM})

_RECORDED: Final[dict[Phase, tuple[str, tuple[str, ...]]]] = {
    Phase.QUEUE: (_names.METRIC_TIME_IN_QUEUE, ()),
    Phase.TCP: (_names.METRIC_TCP_DURATION, (_names.NETWORK_TYPE,)),
    Phase.TLS: (_names.METRIC_TLS_DURATION, (_names.TLS_PROTOCOL_VERSION, _names.TLS_RESUMED)),
    Phase.SETUP: (_names.METRIC_SETUP_DURATION, (_names.URL_SCHEME,)),
}
"""Where a phase is recorded, and what of its record becomes an attribute beside the server and the error."""


class MetricHook:
    """Record metrics through OpenTelemetry.

    Nothing is recorded of a request that is suppressed or excluded. Environment
    variables are read when the hook is made.

    Args:
        settings: ``max_hosts`` limits the hosts per MeterProvider; the first hook's holds.
        meter_provider: The provider; ``None``: the global one, whenever it is set.
    """

    def __init__(
        self, settings: TelemetrySettings = DEFAULTS.telemetry, *, meter_provider: MeterProvider | None = None
    ) -> None:
        self._environment = read_environment()
        instruments = instruments_of(meter_provider)
        instruments.limit_hosts(settings.max_hosts)
        self._instruments = instruments
        self._histograms = instruments.histograms
        self._request_duration = instruments.histograms[_names.METRIC_REQUEST_DURATION]
        self._observed = instruments.observed

    def on_request_start(self, attempt: Attempt) -> None:
        """Count an active request."""
        if decide(attempt, self._environment) is not Decision.TOLD:
            attempt.ignore(self)
            return
        if attempt.context is None:
            attempt.context = get_current()
        method = self._environment.method(attempt.method)
        active = (method, *self._instruments.server(attempt.server_address, attempt.server_port))
        self._observed.change_active(active, 1)
        attempt.state[self] = active

    def on_dns_cache_hit(self, attempt: Attempt) -> None:
        """Count an answer from aiohttp's cache."""
        if self in attempt.state:
            self._observed.count_dns(_names.SOURCE_CACHE)

    def on_connection_closed(self, connection: Connection) -> None:
        """Record a connection's lifetime, unless the request that made it was not told of."""
        attributes = connection.state.get(self)
        if attributes is not None:
            self._histograms[_names.METRIC_CONNECTION_DURATION].record(connection.lifetime, attributes)

    def __call__(self, record: PhaseRecord) -> None:
        """Record the duration of a phase that is over."""
        attempt = record.attempt
        active = attempt.state.get(self)
        if active is None:
            return
        # Under the request's context: an exemplar carries its trace.
        context: Any = attempt.context
        phase = record.phase
        if isinstance(record, RequestRecord):
            self._observed.change_active(active, -1)
            self._request(record, active, context)
        elif phase is Phase.DNS:
            self._dns(record, context)
        elif phase in _RECORDED:
            self._phase(record, context)

    def _request(self, record: RequestRecord, active: tuple[str, str, int | None], context: Any) -> None:
        if self._environment.others_emit_duration and record.attempt.request.traced_elsewhere:
            return
        attributes = _request_attributes(*active, record.status_code, record.protocol_version, record.error_type)
        self._request_duration.record(record.duration, attributes, context)

    def _dns(self, record: PhaseRecord, context: Any) -> None:
        source = record.attributes.get(_names.DNS_SOURCE)
        if source is None:
            return  # its owner stopped waiting; the lookup itself is told of by a background record
        self._observed.count_dns(str(source))
        if source not in _TIMED_LOOKUPS:
            return
        name = str(record.attributes[_names.DNS_QUESTION_NAME])
        attributes: dict[str, Any] = {_names.DNS_QUESTION_NAME: self._instruments.host(name.rstrip(".").lower())}
        if record.error_type is not None:
            attributes[_names.ERROR_TYPE] = record.error_type
        self._histograms[_names.METRIC_DNS_DURATION].record(record.duration, attributes, context)

    def _phase(self, record: PhaseRecord, context: Any) -> None:
        server = self._instruments.server(record.server_address, record.server_port)
        if record.phase is Phase.TCP:
            segments = record.attributes.get(_names.TCP_SYN_RETRANSMITS, 0)
            self._observed.count_retransmits(server, int(segments))  # type: ignore[arg-type]
        elif record.phase is Phase.SETUP and record.attempt.connection is not None:
            connection = record.attempt.connection
            connection.state[self] = server_attributes(
                *self._instruments.server(connection.server_address, connection.server_port)
            )
        name, keys = _RECORDED[record.phase]
        attributes = server_attributes(*server)
        for key in keys:
            value = record.attributes.get(key)
            if value is not None:
                attributes[key] = value
        if record.error_type is not None:
            attributes[_names.ERROR_TYPE] = record.error_type
        self._histograms[name].record(record.duration, attributes, context)


@lru_cache(maxsize=2048)
def _request_attributes(
    method: str, host: str, port: int | None, status: int | None, version: str | None, error_type: str | None
) -> dict[str, Any]:
    attributes = {_names.HTTP_REQUEST_METHOD: method, **server_attributes(host, port)}
    if status is not None:
        attributes[_names.HTTP_STATUS_CODE] = status
    if version is not None:
        attributes[_names.NETWORK_PROTOCOL_VERSION] = version
    if error_type is not None:
        attributes[_names.ERROR_TYPE] = error_type
    return attributes

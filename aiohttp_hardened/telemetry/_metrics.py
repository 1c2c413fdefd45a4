"""Metrics: a histogram per phase, and plain numbers that are observed."""

from __future__ import annotations

import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics

from aiohttp_hardened._settings import DEFAULTS
from aiohttp_hardened.telemetry import _names
from aiohttp_hardened.telemetry._decision import decide
from aiohttp_hardened.telemetry._environment import read_environment
from aiohttp_hardened.telemetry._observed import Observed
from aiohttp_hardened.timing._phase import Phase, PhaseRecord, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, MeterProvider

    from aiohttp_hardened._settings import TelemetrySettings
    from aiohttp_hardened.timing._connection import Connection
    from aiohttp_hardened.timing._request import Attempt

_COUNTED_LOOKUPS: Final = frozenset({"lookup", "system"})


class _Instruments:
    """The instruments of one MeterProvider, made once however many hooks there are.

    Args:
        meter_provider: The provider; ``None``: the global one, whenever it is set.
        max_hosts: Distinct hosts; what the first hook says holds.
    """

    def __init__(self, meter_provider: MeterProvider | None, max_hosts: int) -> None:
        meter = metrics.get_meter(_names.SCOPE, meter_provider=meter_provider, schema_url=_names.SCHEMA_URL)
        self.histograms: dict[str, Histogram] = {
            each.name: meter.create_histogram(
                each.name, "s", each.description, explicit_bucket_boundaries_advisory=list(each.edges)
            )
            for each in _names.HISTOGRAMS
        }
        self._max_hosts = max_hosts
        self._hosts: set[str] = set()
        self.observed = Observed(meter, self)

    def host(self, address: str) -> str:
        """Return a host under which to record; ``_OTHER`` beyond the limit."""
        if address in self._hosts:
            return address
        if len(self._hosts) >= self._max_hosts:
            return _names.OTHER
        self._hosts.add(address)
        return address


_by_provider: Final[weakref.WeakKeyDictionary[Any, _Instruments]] = weakref.WeakKeyDictionary()
_global: list[_Instruments] = []


def _instruments(meter_provider: MeterProvider | None, max_hosts: int) -> _Instruments:
    if meter_provider is None:
        if not _global:
            _global.append(_Instruments(None, max_hosts))
        return _global[0]
    found = _by_provider.get(meter_provider)
    if found is None:
        found = _by_provider[meter_provider] = _Instruments(meter_provider, max_hosts)
    return found


def observe_telemetry_errors() -> None:
    """Have contained failures of hooks counted by the global meter, though no MetricHook listens."""
    _instruments(None, DEFAULTS.telemetry.max_hosts)


class MetricHook:
    """Record metrics through OpenTelemetry.

    Args:
        settings: ``max_hosts`` limits the hosts per MeterProvider.
        meter_provider: The provider; ``None``: the global one, whenever it is set.
    """

    def __init__(
        self, settings: TelemetrySettings = DEFAULTS.telemetry, *, meter_provider: MeterProvider | None = None
    ) -> None:
        self._environment = read_environment()
        self._instruments = _instruments(meter_provider, settings.max_hosts)
        self._histograms = self._instruments.histograms
        self._numbers = self._instruments.observed

    def on_request_start(self, attempt: Attempt) -> None:
        """Count an active request."""
        decision = decide(attempt, self._environment)
        if not decision.told:
            return
        if attempt.context is None:
            attempt.context = decision.context
        method = self._environment.method(attempt.method)
        active = (method, self._instruments.host(attempt.server_address), attempt.server_port)
        attempt.state[self] = active
        self._numbers.active[active] = self._numbers.active.get(active, 0) + 1

    def on_dns_cache_hit(self, attempt: Attempt) -> None:
        """Count an answer from aiohttp's cache."""
        if self in attempt.state:
            self._numbers.dns_sources["cache"] += 1

    def on_connection_closed(self, connection: Connection) -> None:
        """Record a connection's lifetime."""
        attributes = self._server(connection.server_address, connection.server_port)
        self._histograms[_names.METRIC_CONNECTION_DURATION].record(connection.lifetime, attributes)

    def __call__(self, record: PhaseRecord) -> None:
        """Record the duration of a phase that is over."""
        attempt = record.attempt
        active = attempt.state.get(self)
        if active is None:
            return
        context: Any = attempt.context
        if isinstance(record, RequestRecord):
            self._request(record, active, context)
        elif record.phase is Phase.DNS:
            self._dns(record, context)
        elif record.phase is Phase.TCP:
            self._tcp(record, context)
        elif record.phase is not Phase.BODY and record.phase is not Phase.TUNNEL:
            name, keys = _RECORDED[record.phase]
            self._histograms[name].record(record.duration, self._attributes(record, keys), context)

    def _request(self, record: RequestRecord, active: tuple[str, str, int | None], context: Any) -> None:
        self._numbers.active[active] -= 1
        if record.attempt.request.traced_elsewhere and self._environment.others_emit_duration:
            return
        attributes = _request_attributes(*active, record.status_code, record.protocol_version, record.error_type)
        self._histograms[_names.METRIC_REQUEST_DURATION].record(record.duration, attributes, context)

    def _dns(self, record: PhaseRecord, context: Any) -> None:
        source = record.attributes.get(_names.DNS_SOURCE)
        if source is None:
            return
        if source in self._numbers.dns_sources:
            self._numbers.dns_sources[str(source)] += 1
        if source not in _COUNTED_LOOKUPS:
            return
        name = str(record.attributes[_names.DNS_QUESTION_NAME])
        attributes: dict[str, Any] = {_names.DNS_QUESTION_NAME: self._instruments.host(name.rstrip(".").lower())}
        if record.error_type is not None:
            attributes[_names.ERROR_TYPE] = record.error_type
        self._histograms[_names.METRIC_DNS_DURATION].record(record.duration, attributes, context)

    def _tcp(self, record: PhaseRecord, context: Any) -> None:
        attributes = self._attributes(record, (_names.NETWORK_TYPE,))
        self._histograms[_names.METRIC_TCP_DURATION].record(record.duration, attributes, context)
        server = (self._instruments.host(record.server_address), record.server_port)
        lost = int(record.attributes.get(_names.TCP_SYN_RETRANSMITS, 0))  # type: ignore[arg-type]
        self._numbers.syn_retransmits[server] = self._numbers.syn_retransmits.get(server, 0) + lost

    def _attributes(self, record: PhaseRecord, keys: tuple[str, ...]) -> dict[str, Any]:
        attributes = self._server(record.server_address, record.server_port)
        for key in keys:
            value = record.attributes.get(key)
            if value is not None:
                attributes[key] = value
        if record.error_type is not None:
            attributes[_names.ERROR_TYPE] = record.error_type
        return attributes

    def _server(self, address: str, port: int | None) -> dict[str, Any]:
        return server_attributes(self._instruments.host(address), port)


_RECORDED: Final[dict[Phase, tuple[str, tuple[str, ...]]]] = {
    Phase.QUEUE: (_names.METRIC_TIME_IN_QUEUE, ()),
    Phase.TLS: (_names.METRIC_TLS_DURATION, (_names.TLS_PROTOCOL_VERSION, _names.TLS_RESUMED)),
    Phase.SETUP: (_names.METRIC_SETUP_DURATION, (_names.URL_SCHEME,)),
}


def server_attributes(host: str, port: int | None) -> dict[str, Any]:
    """Return the attributes of a server; hosts beyond the limit have no port, or ports would be unlimited."""
    attributes: dict[str, Any] = {_names.SERVER_ADDRESS: host}
    if port is not None and host != _names.OTHER:
        attributes[_names.SERVER_PORT] = port
    return attributes


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

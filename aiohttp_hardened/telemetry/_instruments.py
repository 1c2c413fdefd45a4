"""The instruments of one MeterProvider, made once however many hooks and sessions there are."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics

from aiohttp_hardened._settings import DEFAULTS
from aiohttp_hardened.telemetry import _names
from aiohttp_hardened.telemetry._environment import package_version
from aiohttp_hardened.telemetry._observed import Observed

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, MeterProvider

PORTS_PER_HOST: Final = 10
"""Ports are limited too, on average over the hosts: one host can have 65535 of them."""


class Instruments:
    """Histograms, observed numbers, and the hosts under which they are recorded.

    Args:
        meter_provider: The provider; a proxy until the application has set one.
    """

    def __init__(self, meter_provider: MeterProvider) -> None:
        meter = metrics.get_meter(
            _names.SCOPE, package_version() or "", meter_provider=meter_provider, schema_url=_names.SCHEMA_URL
        )
        self.histograms: dict[str, Histogram] = {
            each.name: meter.create_histogram(
                each.name, each.unit, each.description, explicit_bucket_boundaries_advisory=list(each.edges)
            )
            for each in _names.METRICS
            if each.kind == "histogram"
        }
        self._lock = threading.Lock()
        self._max_hosts: int | None = None
        self._hosts: set[str] = set()
        self._servers: set[tuple[str, int | None]] = set()
        self.observed = Observed(meter, self.host, self.server)

    def limit_hosts(self, max_hosts: int) -> None:
        """Limit the distinct hosts; the first call holds."""
        if self._max_hosts is None:
            self._max_hosts = max_hosts

    def host(self, address: str) -> str:
        """Return a host under which to record; ``_OTHER`` beyond the limit."""
        if address in self._hosts:
            return address
        with self._lock:
            if len(self._hosts) >= (self._max_hosts or DEFAULTS.telemetry.max_hosts):
                return _names.OTHER
            self._hosts.add(address)
        return address

    def server(self, address: str, port: int | None) -> tuple[str, int | None]:
        """Return a host and port under which to record; ``_OTHER`` without a port beyond the limit."""
        server = (address, port)
        if server in self._servers:
            return server
        if self.host(address) == _names.OTHER:
            return _names.OTHER, None
        with self._lock:
            if len(self._servers) >= PORTS_PER_HOST * (self._max_hosts or DEFAULTS.telemetry.max_hosts):
                return _names.OTHER, None
            self._servers.add(server)
        self.observed.announce(server)
        return server


_by_provider: Final[weakref.WeakKeyDictionary[Any, Instruments]] = weakref.WeakKeyDictionary()
_lock: Final = threading.Lock()


def instruments_of(meter_provider: MeterProvider | None) -> Instruments:
    """Return the instruments of a provider.

    Args:
        meter_provider: The provider; ``None``: the global one, whenever it is set.
    """
    present = metrics.get_meter_provider()
    wanted = present if meter_provider is None else meter_provider
    with _lock:
        found = _by_provider.get(wanted)
        if found is None and wanted is present:
            found = _made_by_proxy()
        if found is None:
            found = Instruments(wanted)
        _by_provider[wanted] = found
    return found


def _made_by_proxy() -> Instruments | None:
    """Take over what was made before the global provider was set; it now feeds that one."""
    for provider in tuple(_by_provider):
        if is_proxy(provider):
            return _by_provider.pop(provider)
    return None


def is_proxy(provider: object) -> bool:
    """Say whether a global provider is the API's stand-in: none was set yet."""
    return type(provider).__name__ in ("_ProxyMeterProvider", "ProxyTracerProvider")


def observe_telemetry_errors() -> None:
    """Have contained failures of hooks counted by the global meter, though no MetricHook listens."""
    instruments_of(None)

"""Plain numbers that are read when metrics are collected.

They exist at 0 from the start, whenever the provider comes; a synchronous ``add``
before it is lost, and one costs more than the request's own bookkeeping.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import Observation

from aiohttp_hardened.telemetry import _names
from aiohttp_hardened.timing._connection import loops, open_connections
from aiohttp_hardened.timing._figures import figures

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter

    from aiohttp_hardened.telemetry._names import Metric
    from aiohttp_hardened.timing._connection import ConnectionState

Read = Callable[[], Iterable[tuple[float, dict[str, Any]]]]
"""Yields each value with its attributes."""

Server = tuple[str, int | None]
ActiveKey = tuple[str, str, int | None]
"""Method, host and port."""


class Observed:
    """The observable instruments of one meter.

    Args:
        meter: Where they are made.
        host: Returns the host under which to record, within the limit of hosts.
        server: Returns the host and port under which to record.
    """

    def __init__(self, meter: Meter, host: Callable[[str], str], server: Callable[[str, int | None], Server]) -> None:
        self._host = host
        self._server = server
        self._reset()
        reads: dict[str, Read] = {
            _names.METRIC_ACTIVE_REQUESTS: self._active_requests,
            _names.METRIC_OPEN_CONNECTIONS: self._open_connections,
            _names.METRIC_DNS_CACHE_LOOKUPS: self._dns_cache_lookups,
            _names.METRIC_SYN_RETRANSMITS: self._syn_retransmits,
            _names.METRIC_NOT_AFTER: self._not_after,
            **_OF_THE_PROCESS,
        }
        for metric in _names.METRICS:
            if metric.kind != "histogram":
                _create(meter, metric, reads[metric.name])
        if hasattr(os, "register_at_fork"):
            after_fork = weakref.WeakMethod(self._reset)
            os.register_at_fork(after_in_child=lambda: (reset := after_fork()) and reset())

    def _reset(self) -> None:
        """Start at 0; a forked child has none of its parent's requests, nor the threads that may hold the lock."""
        # Several loops in several threads count here: ``+=`` on an item of a dict is not atomic.
        self._lock = threading.Lock()
        self._active: dict[ActiveKey, int] = {}
        self._dns_sources: dict[str, int] = dict.fromkeys(_names.DNS_SOURCES, 0)
        self._retransmits: dict[Server, int] = {}

    def announce(self, server: Server) -> None:
        """Let the counters of a server exist at 0."""
        with self._lock:
            self._retransmits.setdefault(server, 0)

    def change_active(self, key: ActiveKey, by: int) -> None:
        """Count a request that begins (1) or ends (-1)."""
        with self._lock:
            # A request that a fork cut off from its beginning is not counted below 0.
            self._active[key] = max(0, self._active.get(key, 0) + by)

    def count_dns(self, source: str) -> None:
        """Count a name that was asked for."""
        with self._lock:
            if source in self._dns_sources:
                self._dns_sources[source] += 1

    def count_retransmits(self, server: Server, segments: int) -> None:
        """Count SYN segments that were sent again."""
        with self._lock:
            self._retransmits[server] = self._retransmits.get(server, 0) + segments

    def _active_requests(self) -> Iterable[tuple[float, dict[str, Any]]]:
        for (method, host, port), count in self._active.copy().items():
            yield count, {_names.HTTP_REQUEST_METHOD: method, **server_attributes(host, port)}

    def _open_connections(self) -> Iterable[tuple[float, dict[str, Any]]]:
        counts: Counter[tuple[ConnectionState, Server]] = Counter()
        for connection, state in open_connections():
            counts[state, self._server(connection.server_address, connection.server_port)] += 1
        for (state, server), count in counts.items():
            yield count, {_names.HTTP_CONNECTION_STATE: state, **server_attributes(*server)}

    def _dns_cache_lookups(self) -> Iterable[tuple[float, dict[str, Any]]]:
        for source, count in self._dns_sources.copy().items():
            yield count, {_names.DNS_SOURCE: source}

    def _syn_retransmits(self) -> Iterable[tuple[float, dict[str, Any]]]:
        for server, count in self._retransmits.copy().items():
            yield count, server_attributes(*server)

    def _not_after(self) -> Iterable[tuple[float, dict[str, Any]]]:
        for (name, role), ends in figures.own_not_after.copy().items():
            yield ends, {_names.TLS_NAME: name, _names.TLS_ROLE: role}
        first_to_end: dict[str, float] = {}
        for address, ends in figures.peer_not_after.copy().items():
            host = self._host(address)
            first_to_end[host] = min(ends, first_to_end.get(host, ends))
        for host, ends in first_to_end.items():
            yield ends, {_names.SERVER_ADDRESS: host}


def server_attributes(host: str, port: int | None) -> dict[str, Any]:
    """Return the attributes of a server."""
    attributes: dict[str, Any] = {_names.SERVER_ADDRESS: host}
    if port is not None:
        attributes[_names.SERVER_PORT] = port
    return attributes


def _create(meter: Meter, metric: Metric, read: Read) -> None:
    create = {
        "counter": meter.create_observable_counter,
        "up_down_counter": meter.create_observable_up_down_counter,
        "gauge": meter.create_observable_gauge,
    }[metric.kind]

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        try:
            return [Observation(value, attributes) for value, attributes in read()]
        except Exception:  # noqa: BLE001  (the reader would log a stack at each collection)
            figures.count_telemetry_error()
            return []

    create(metric.name, [observe], metric.unit, metric.description)


def _telemetry_errors() -> Iterable[tuple[float, dict[str, Any]]]:
    yield figures.telemetry_errors, {}


def _ssl_contexts() -> Iterable[tuple[float, dict[str, Any]]]:
    yield figures.ssl_contexts, {}


def _reloads() -> Iterable[tuple[float, dict[str, Any]]]:
    for (name, outcome), count in figures.tls_reloads.copy().items():
        yield count, {_names.TLS_NAME: name, _names.OUTCOME: outcome}


def _executors() -> Iterable[tuple[int, int]]:
    """Yield busy threads and waiting jobs of each loop's default executor.

    asyncio's loop shows it as ``_default_executor``; uvloop's does not.
    """
    for loop in loops():
        executor: Any = getattr(loop, "_default_executor", None)
        threads, idle, queue = (
            getattr(executor, name, None) for name in ("_threads", "_idle_semaphore", "_work_queue")
        )
        if threads is not None and idle is not None and queue is not None:
            yield max(0, len(threads) - idle._value), queue.qsize()  # noqa: SLF001  (there is no public way)
        elif executor is None and hasattr(loop, "_default_executor"):
            yield 0, 0


def _busy() -> Iterable[tuple[float, dict[str, Any]]]:
    found = list(_executors())
    if found:
        yield sum(busy for busy, _ in found), {}


def _queued() -> Iterable[tuple[float, dict[str, Any]]]:
    found = list(_executors())
    if found:
        yield sum(queued for _, queued in found), {}


_OF_THE_PROCESS: Final[dict[str, Read]] = {
    _names.METRIC_TELEMETRY_ERRORS: _telemetry_errors,
    _names.METRIC_RELOADS: _reloads,
    _names.METRIC_SSL_CONTEXTS: _ssl_contexts,
    _names.METRIC_EXECUTOR_BUSY: _busy,
    _names.METRIC_EXECUTOR_QUEUED: _queued,
}

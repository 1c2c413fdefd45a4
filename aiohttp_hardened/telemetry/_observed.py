"""Plain numbers that are read when metrics are collected.

They exist at 0 from the start, whenever the provider comes; a synchronous ``add``
before it is lost, and one costs more than the request's own bookkeeping.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from aiohttp_hardened.telemetry import _names
from aiohttp_hardened.timing._connection import loops, open_connections
from aiohttp_hardened.timing._figures import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Observations = "Iterable[Observation]"


class Hosts(Protocol):
    """Who limits the hosts."""

    def host(self, address: str) -> str:
        """Return a host under which to record."""


class Observed:
    """The observable instruments of one meter.

    Args:
        meter: Where they are made.
        hosts: Who limits the hosts.
    """

    def __init__(self, meter: Meter, hosts: Hosts) -> None:
        self.active: dict[tuple[str, str, int | None], int] = {}
        """Requests under way, by method, host and port."""
        self.dns_sources: dict[str, int] = dict.fromkeys(_names.DNS_SOURCES, 0)
        self.syn_retransmits: dict[tuple[str, int | None], int] = {}
        self._hosts = hosts
        meter.create_observable_up_down_counter(
            _names.METRIC_ACTIVE_REQUESTS, [self._active], "{request}", "Requests under way."
        )
        meter.create_observable_up_down_counter(
            _names.METRIC_OPEN_CONNECTIONS, [self._connections], "{connection}", "Connections, active and idle."
        )
        meter.create_observable_counter(
            _names.METRIC_DNS_CACHE_LOOKUPS, [self._dns], "{lookup}", "Names asked for, by where the answer came from."
        )
        meter.create_observable_counter(
            _names.METRIC_SYN_RETRANSMITS, [self._retransmits], "{segment}", "SYN segments that were sent again."
        )
        for create, name, unit, description, read in _OF_THE_PROCESS:
            getattr(meter, create)(name, [_callback(read)], unit, description)

    def _active(self, _: CallbackOptions) -> Iterable[Observation]:
        for (method, host, port), count in self.active.copy().items():
            yield Observation(count, {_names.HTTP_REQUEST_METHOD: method, **_server(host, port)})

    def _connections(self, _: CallbackOptions) -> Iterable[Observation]:
        counts: Counter[tuple[str, str, int | None]] = Counter()
        for connection, state in open_connections():
            counts[state, self._hosts.host(connection.server_address), connection.server_port] += 1
        for (state, host, port), count in counts.items():
            yield Observation(count, {_names.HTTP_CONNECTION_STATE: state, **_server(host, port)})

    def _dns(self, _: CallbackOptions) -> Iterable[Observation]:
        for source, count in self.dns_sources.items():
            yield Observation(count, {_names.DNS_SOURCE: source})

    def _retransmits(self, _: CallbackOptions) -> Iterable[Observation]:
        for (host, port), count in self.syn_retransmits.copy().items():
            yield Observation(count, _server(host, port))


def _server(host: str, port: int | None) -> dict[str, Any]:
    if port is None or host == _names.OTHER:
        return {_names.SERVER_ADDRESS: host}
    return {_names.SERVER_ADDRESS: host, _names.SERVER_PORT: port}


def _callback(read: Callable[[], Iterable[Observation]]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: read()


def _telemetry_errors() -> Iterable[Observation]:
    yield Observation(figures.telemetry_errors)


def _ssl_contexts() -> Iterable[Observation]:
    yield Observation(figures.ssl_contexts)


def _reloads() -> Iterable[Observation]:
    for (name, outcome), count in figures.tls_reloads.copy().items():
        yield Observation(count, {_names.TLS_NAME: name, _names.OUTCOME: outcome})


def _not_after() -> Iterable[Observation]:
    for (name, role), ends in figures.own_not_after.copy().items():
        yield Observation(ends, {_names.TLS_NAME: name, _names.TLS_ROLE: role})
    for address, ends in figures.peer_not_after.copy().items():
        yield Observation(ends, {_names.SERVER_ADDRESS: address})


def _executors() -> Iterable[tuple[int, int]]:
    """Yield busy threads and waiting jobs of each loop's default executor.

    asyncio's loop shows it as ``_default_executor``; uvloop's does not.
    """
    for loop in loops():
        executor: Any = getattr(loop, "_default_executor", None)
        threads, idle, queue = (getattr(executor, name, None) for name in ("_threads", "_idle_semaphore", "_work_queue"))
        if threads is not None and idle is not None and queue is not None:
            yield max(0, len(threads) - idle._value), queue.qsize()  # noqa: SLF001  (there is no public way)
        elif executor is None and hasattr(loop, "_default_executor"):
            yield 0, 0


def _busy() -> Iterable[Observation]:
    found = list(_executors())
    if found:
        yield Observation(sum(busy for busy, _ in found))


def _queued() -> Iterable[Observation]:
    found = list(_executors())
    if found:
        yield Observation(sum(queued for _, queued in found))


_COUNTER: Final = "create_observable_counter"
_GAUGE: Final = "create_observable_gauge"

_OF_THE_PROCESS: Final = (
    (_COUNTER, _names.METRIC_TELEMETRY_ERRORS, "{error}", "Contained failures of hooks.", _telemetry_errors),
    (_COUNTER, _names.METRIC_RELOADS, "{reload}", "Reloads of trust decisions, by outcome.", _reloads),
    (_GAUGE, _names.METRIC_NOT_AFTER, "s", "End of certificates, own and peers', as unix time.", _not_after),
    (_GAUGE, _names.METRIC_SSL_CONTEXTS, "{context}", "Live SSL contexts.", _ssl_contexts),
    (_GAUGE, _names.METRIC_EXECUTOR_BUSY, "{thread}", "Threads of default executors that work.", _busy),
    (_GAUGE, _names.METRIC_EXECUTOR_QUEUED, "{job}", "Jobs that wait for a thread of a default executor.", _queued),
)

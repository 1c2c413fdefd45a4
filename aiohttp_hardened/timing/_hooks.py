"""How hooks are called: in order, never awaited, and contained."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from aiohttp_hardened.timing._figures import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from aiohttp_hardened.timing._connection import Connection
    from aiohttp_hardened.timing._phase import PhaseHook, PhaseRecord
    from aiohttp_hardened.timing._request import Attempt

_logger = logging.getLogger("aiohttp_hardened")

_SECONDS_BETWEEN_LOG_LINES: Final = 60.0
_MOST_NAMES: Final = 100
_CONTAINED: Final = (Exception, asyncio.CancelledError)
"""``CancelledError`` too: a hook that raises it must not cancel the caller's request."""


class Hooks:
    """The hooks of one TraceConfig, sorted by what they listen to.

    Args:
        hooks: Callables that take a record. Each may also have
            ``on_request_start(attempt)``, ``on_dns_cache_hit(attempt)`` and
            ``on_connection_closed(connection)``.
    """

    def __init__(self, hooks: Iterable[PhaseHook]) -> None:
        self.all: tuple[PhaseHook, ...] = tuple(hooks)
        self._starts: tuple[Callable[[Attempt], None], ...] = self._having("on_request_start")
        self._cache_hits: tuple[Callable[[Attempt], None], ...] = self._having("on_dns_cache_hit")
        self._closed: tuple[Callable[[Connection], None], ...] = self._having("on_connection_closed")

        self._without: dict[PhaseHook, Hooks] = {}

    def without(self, hook: PhaseHook) -> Hooks:
        """Return these hooks but one; the same object each time."""
        fewer = self._without.get(hook)
        if fewer is None:
            fewer = self._without[hook] = Hooks(each for each in self.all if each is not hook)
        return fewer

    def _having(self, name: str) -> tuple[Callable[..., None], ...]:
        methods = (getattr(hook, name, None) for hook in self.all)
        return tuple(method for method in methods if method is not None)

    def __bool__(self) -> bool:
        """Say whether anybody listens."""
        return bool(self.all)

    def emit(self, record: PhaseRecord) -> None:
        """Hand one record to every hook."""
        for hook in self.all:
            try:
                hook(record)
            except _CONTAINED as exc:
                _contain(hook, exc)

    def request_started(self, attempt: Attempt) -> None:
        """Tell that a send attempt begins."""
        for method in self._starts:
            try:
                method(attempt)
            except _CONTAINED as exc:
                _contain(method, exc)

    def dns_cache_hit(self, attempt: Attempt) -> None:
        """Tell that a name was answered from aiohttp's cache."""
        for method in self._cache_hits:
            try:
                method(attempt)
            except _CONTAINED as exc:
                _contain(method, exc)

    def connection_closed(self, connection: Connection) -> None:
        """Tell that a connection which these hooks saw made is gone."""
        for method in self._closed:
            try:
                method(connection)
            except _CONTAINED as exc:
                _contain(method, exc)


SILENT: Final = Hooks(())

_last_logged: dict[str, float] = {}


@contextlib.contextmanager
def contained(what: object) -> Generator[None]:
    """Count and log what fails inside as a hook's failure is; nothing is raised."""
    try:
        yield
    except _CONTAINED as exc:
        _contain(what, exc)


def _contain(hook: object, exc: BaseException) -> None:
    """Count a hook's failure, and log it once in a while."""
    figures.count_telemetry_error()
    name = getattr(hook, "__qualname__", type(hook).__qualname__)
    now = time.monotonic()
    if now - _last_logged.get(name, -_SECONDS_BETWEEN_LOG_LINES) < _SECONDS_BETWEEN_LOG_LINES:
        return
    if len(_last_logged) > _MOST_NAMES:
        _last_logged.clear()
    _last_logged[name] = now
    _logger.warning(
        "telemetry hook %s failed; the request goes on (%d failures in all; next line in %.0f s at the earliest)",
        name,
        figures.telemetry_errors,
        _SECONDS_BETWEEN_LOG_LINES,
        exc_info=exc,
    )

"""Connectors that somebody else made: let them tell of their phases, and give them back.

A connector stays the object that it is, with its settings; its class becomes one that is
derived from it, under the same name. Private names of aiohttp that this touches, each proved
by ``tests/test_contract.py``: ``BaseConnector._factory`` and ``_loop``, ``TCPConnector._socket_factory``,
and as names that a class of somebody else's may override: ``_wrap_create_connection``,
``_create_direct_connection``, ``_create_proxy_connection``, ``_start_tls_connection``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from aiohttp_hardened._connector import Hardening, TimedConnector, TimedTCPConnector, UnsplitTCPConnector
from aiohttp_hardened.timing._connection import forget_pool
from aiohttp_hardened.timing._tls import unsplit_handshakes

if TYPE_CHECKING:
    from aiohttp_hardened._settings import TimeoutSettings

_logger: Final = logging.getLogger("aiohttp_hardened")

left_alone: Final[ContextVar[bool]] = ContextVar("aiohttp_hardened_left_alone", default=False)
"""Whether the session that is being built is ours, and knows what it wants told."""

_MAKING: Final = (
    "_wrap_create_connection",
    "_create_direct_connection",
    "_create_proxy_connection",
    "_start_tls_connection",
)
"""Whoever overrides one of these connects in a way of its own, whose parts we do not know."""

_timed_classes: Final[dict[type[aiohttp.BaseConnector], type[TimedConnector]]] = {}


def timed_class(kind: type[aiohttp.BaseConnector]) -> type[TimedConnector]:
    """Return a class that is the given one and tells of its phases; it keeps the name and the module."""
    if issubclass(kind, TimedConnector):
        return kind
    known = _timed_classes.get(kind)
    if known is None:
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        made: Any = type(kind.__name__, (_mixin(kind), kind), names)
        known = _timed_classes[kind] = made
    return known


def _mixin(kind: type[aiohttp.BaseConnector]) -> type[TimedConnector]:
    if not issubclass(kind, aiohttp.TCPConnector):
        return TimedConnector
    if any(getattr(kind, name) is not getattr(aiohttp.TCPConnector, name) for name in _MAKING):
        return UnsplitTCPConnector
    return TimedTCPConnector


_adopted: Final[weakref.WeakValueDictionary[int, aiohttp.BaseConnector]] = weakref.WeakValueDictionary()
"""By ``id``: a class of somebody else's may not be hashable."""
_lock: Final = threading.Lock()


def adopt_connector(connector: Any) -> None:
    """Let a connector tell of its phases until ``give_back_connectors()``; aiohttp's own timeouts hold.

    Args:
        connector: Any; one of ours, or what is no connector at all, stays as it is.
    """
    connector = _behind_proxies(connector)
    if connector is None:
        return
    if isinstance(connector, TimedConnector):
        hardening = connector._hardening
        if not hardening.leaving:
            return
        hardening.leaving = False
    else:
        hardening = Hardening()
        hardening.restore = partial(_restore, weakref.ref(connector), type(connector), connector._factory)
        if not _time(connector, hardening):
            return
    with _lock:
        _adopted[id(connector)] = connector


def give_back_connectors() -> None:
    """Make every adopted connector, and every context that was split, what it was.

    A connector that somebody is connecting with is given back as soon as that is over.
    """
    with _lock:
        adopted: list[Any] = list(_adopted.values())
        _adopted.clear()
    for connector in adopted:
        hardening, loop = connector._hardening, connector._loop
        hardening.leaving = True
        if loop.is_running() and loop is not asyncio._get_running_loop():
            loop.call_soon_threadsafe(hardening.leave_when_idle)
        else:
            hardening.leave_when_idle()
    unsplit_handshakes()


def _restore(reference: weakref.ref[aiohttp.BaseConnector], kind: type[aiohttp.BaseConnector], factory: Any) -> None:
    connector = reference()
    if not isinstance(connector, TimedConnector):
        return
    forget_pool(connector)
    mutable: Any = connector
    if isinstance(connector, TimedTCPConnector):
        mutable._socket_factory = connector._hardening.socket_factory
    mutable._factory = factory
    mutable.__class__ = kind
    del mutable._hardening


def time_connector(connector: aiohttp.BaseConnector, timeouts: TimeoutSettings | None) -> None:
    """Let a caller's own connector tell of its phases for good; object, settings and ``isinstance`` stay.

    Args:
        connector: Any connector; one of ours stays as it is.
        timeouts: Budgets to hold; ``None``: aiohttp's own timeouts hold.
    """
    found = _behind_proxies(connector)
    if found is None:
        return
    if not isinstance(found, TimedConnector):
        _time(found, Hardening(timeouts=timeouts))
        return
    hardening = found._hardening
    if hardening.restore is None:
        return
    hardening.restore, hardening.leaving = None, False
    hardening.timeouts, hardening.last_timeout = timeouts, None
    with _lock:
        _adopted.pop(id(found), None)


def _behind_proxies(connector: Any) -> Any:
    """Return the connector behind a tracer's proxies, as wrapt makes them; ``None`` if it is not to be had."""
    while connector is not None and not issubclass(type(connector), aiohttp.BaseConnector):
        connector = getattr(connector, "__wrapped__", None)
    return connector


def _time(connector: aiohttp.BaseConnector, hardening: Hardening) -> bool:
    mutable: Any = connector
    kind = type(connector)
    # Before the class, whose methods need it: a request may be on its way in another thread.
    mutable._hardening = hardening
    try:
        mutable.__class__ = timed_class(kind)
    except TypeError as exc:
        del mutable._hardening
        _logger.warning("connections of %s.%s cannot be timed: %s", kind.__module__, kind.__qualname__, exc)
        return False
    mutable._harden(hardening)
    return True

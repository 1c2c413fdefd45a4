"""The composition root: the only module that sees all parts."""

from __future__ import annotations

import asyncio
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import aiohttp

from aiohttp_hardened._connector import Hardening, TimedTCPConnector
from aiohttp_hardened._foreign import left_alone, time_connector
from aiohttp_hardened._settings import DEFAULTS, Settings
from aiohttp_hardened.dns._health import AddressHealth
from aiohttp_hardened.dns._resolver import HardenedResolver, WrappedResolver
from aiohttp_hardened.exceptions import SettingsError, UnverifiedRequestError
from aiohttp_hardened.telemetry._defaults import default_hooks
from aiohttp_hardened.telemetry._metrics import observe_telemetry_errors
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.timing._hooks import Hooks
from aiohttp_hardened.timing._trace_config import HardenedTraceConfig
from aiohttp_hardened.tls._registry import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiohttp_hardened.timing._phase import PhaseHook


def create_session(
    settings: Settings = DEFAULTS, *, hooks: Iterable[PhaseHook] | None = None, **client_session_options: Any
) -> aiohttp.ClientSession:
    """Create a preconfigured ``aiohttp.ClientSession``; whoever creates it closes it.

    Args:
        settings: What to differ from ``DEFAULTS`` in.
        hooks: Listeners to the phases. ``None``: spans and metrics through the
            global OpenTelemetry providers, which may be set later; ``()``: silence.
        **client_session_options: Every keyword of ``aiohttp.ClientSession``; what
            is passed wins. A ``connector=`` is instrumented, not replaced.

    Raises:
        RuntimeError: No event loop is running.
        SettingsError: A hook is not callable, or ``aiodns`` is missing.
    """
    _require_running_loop("create_session")
    config = trace_config_for(settings, hooks)
    options = dict(client_session_options)
    if config is not None:
        options["trace_configs"] = [*(options.get("trace_configs") or ()), config]
    if options.get("timeout") is None:
        options["timeout"] = _session_timeout(settings)
    connector = options.get("connector")
    if connector is not None:
        time_connector(connector, settings.timeouts)
        return _build(options)
    options["connector"] = connector = create_connector(settings)
    try:
        return _build(options)
    except BaseException:
        connector._close()  # noqa: SLF001  (the coroutine ``close()`` cannot be awaited here)
        raise


def _build(options: dict[str, Any]) -> aiohttp.ClientSession:
    """Build a session that ``instrument()`` leaves alone."""
    token = left_alone.set(True)
    try:
        return aiohttp.ClientSession(**options)
    finally:
        left_alone.reset(token)


def create_connector(settings: Settings = DEFAULTS, **tcp_connector_options: Any) -> aiohttp.TCPConnector:
    """Create a preconfigured ``aiohttp.TCPConnector``; whoever creates it closes it.

    Args:
        settings: What to differ from ``DEFAULTS`` in.
        **tcp_connector_options: Every keyword of ``aiohttp.TCPConnector``; what is
            passed wins. A ``resolver=`` is wrapped in the lookup's deadline and
            stays the caller's to close.

    Raises:
        RuntimeError: No event loop is running.
        UnverifiedRequestError: ``ssl=False`` or ``verify_ssl=False``.
    """
    _require_running_loop("create_connector")
    options = dict(tcp_connector_options)
    _refuse_unverified(settings, options)
    figures.announce_reloads(name_of(settings.tls))
    options.setdefault("limit", settings.pool.limit)
    options.setdefault("limit_per_host", settings.pool.limit_per_host)
    options.setdefault("ttl_dns_cache", settings.dns.cache_ttl)
    options.setdefault("happy_eyeballs_delay", settings.dns.happy_eyeballs_delay)
    options.setdefault("timeout_ceil_threshold", math.inf)
    if not options.get("force_close"):
        options.setdefault("keepalive_timeout", settings.pool.keepalive)
    resolver: HardenedResolver | None = None
    theirs = options.get("resolver")
    if theirs is None:
        options["resolver"] = resolver = HardenedResolver.open(settings.dns, settings.timeouts.dns)
    else:
        options["resolver"] = WrappedResolver(theirs, settings.timeouts.dns)
    try:
        connector = TimedTCPConnector(**options)
    except BaseException:
        if resolver is not None:
            resolver.release()
        raise
    connector._harden(  # noqa: SLF001  (one of our own classes)
        Hardening(
            timeouts=settings.timeouts,
            tls=settings.tls,
            resolver=resolver,
            lookups_bounded=True,
            health=AddressHealth(settings.dns.quarantine),
            max_connection_age=settings.pool.max_connection_age,
        )
    )
    return connector


def create_trace_config(
    settings: Settings = DEFAULTS, *, hooks: Iterable[PhaseHook] | None = None
) -> aiohttp.TraceConfig:
    """Create a TraceConfig for a session that is built elsewhere.

    The session's connector is instrumented at the first request; its timeouts,
    contexts and resolver stay as they are.

    Args:
        settings: Only ``telemetry`` is used.
        hooks: As for ``create_session``.
    """
    return HardenedTraceConfig(_hooks(settings, hooks), _time_session)


def _time_session(session: aiohttp.ClientSession) -> None:
    if session.connector is not None:
        time_connector(session.connector, None)


def _require_running_loop(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            f"{name}() needs a running event loop: call it inside a coroutine; Settings(...) may be made at import time"
        ) from None


def trace_config_for(
    settings: Settings,
    hooks: Iterable[PhaseHook] | None,
    prepare: Callable[[aiohttp.ClientSession], None] | None = None,
) -> HardenedTraceConfig | None:
    """Return the TraceConfig for some hooks; ``None`` for silence.

    Args:
        settings: Only ``telemetry`` is used.
        hooks: As for ``create_session``.
        prepare: As for ``HardenedTraceConfig``.
    """
    if hooks is None and isinstance(settings, Settings):
        return _default_trace_config(default_hooks(settings.telemetry), prepare)
    listening = _hooks(settings, hooks)
    return HardenedTraceConfig(listening, prepare) if listening else None


@lru_cache(maxsize=8)
def _default_trace_config(
    hooks: tuple[PhaseHook, ...], prepare: Callable[[aiohttp.ClientSession], None] | None
) -> HardenedTraceConfig:
    """Return one TraceConfig for all sessions with these hooks: its sixteen signals cost more than the session."""
    return HardenedTraceConfig(Hooks(hooks), prepare)


def _hooks(settings: Settings, hooks: Iterable[PhaseHook] | None) -> Hooks:
    if not isinstance(settings, Settings):
        raise SettingsError(f"settings is {type(settings).__name__}; it must be Settings")
    if hooks is None:
        return Hooks(default_hooks(settings.telemetry))
    given = tuple(hooks)
    for hook in given:
        if not callable(hook):
            raise SettingsError(f"hooks holds {hook!r}; each hook is a callable that takes one PhaseRecord")
    if given:
        observe_telemetry_errors()
    return Hooks(given)


@lru_cache(maxsize=32)
def _session_timeout(settings: Settings) -> aiohttp.ClientTimeout:
    timeouts = settings.timeouts
    return aiohttp.ClientTimeout(total=timeouts.total, sock_read=timeouts.read, ceil_threshold=math.inf)


def _refuse_unverified(settings: Settings, options: dict[str, Any]) -> None:
    for name in ("ssl", "verify_ssl"):
        if options.get(name, True) is False and not settings.tls.allow_unverified:
            raise UnverifiedRequestError(
                f"create_connector({name}=False) would verify nobody; name the authority in "
                "TLSSettings(ca_files=...), or allow it with TLSSettings(allow_unverified=True)"
            )

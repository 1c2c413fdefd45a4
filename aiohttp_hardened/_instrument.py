"""The same telemetry for sessions that somebody else builds.

A session gets our TraceConfig, and its connector tells of its phases; timeouts, contexts and
resolver stay what they are. Nothing is wrapped: while ``instrument()`` holds, the class has a
descriptor in the place of an attribute that each new session sets, so that no frame of ours
stands between a caller and aiohttp's warnings, and other wrappers of ``__init__`` or
``_request`` can come and go in any order.

Private names of aiohttp that it touches, each proved by ``tests/test_contract.py``:
``ClientSession._trace_configs`` and ``_connector``, the latter set before the former.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from aiohttp_hardened._foreign import adopt_connector, give_back_connectors, left_alone
from aiohttp_hardened._session import trace_config_for
from aiohttp_hardened._settings import DEFAULTS
from aiohttp_hardened.exceptions import SettingsError
from aiohttp_hardened.timing._hooks import contained
from aiohttp_hardened.timing._trace_config import HardenedTraceConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp_hardened._settings import Settings
    from aiohttp_hardened.timing._phase import PhaseHook

_ATTRIBUTE: Final = "_trace_configs"

_sessions: Final[weakref.WeakValueDictionary[int, aiohttp.ClientSession]] = weakref.WeakValueDictionary()
"""Sessions that have our TraceConfig from here, by ``id``: a class of somebody else's may not be hashable."""
_lock: Final = threading.Lock()


class _Telling:
    """What sessions are to tell, and to whom.

    Args:
        settings: Only ``telemetry`` is used.
        hooks: As for ``create_session``.

    Raises:
        SettingsError: The settings are none, or a hook is not callable.
    """

    def __init__(self, settings: Settings, hooks: Iterable[PhaseHook] | None) -> None:
        self._settings = settings
        self._follows_providers = hooks is None
        self._config = trace_config_for(settings, hooks, _adopt_connector_of)

    def attach(self, session: aiohttp.ClientSession) -> None:
        """Let a session tell, unless it does already."""
        configs: Any = vars(session)[_ATTRIBUTE]
        if any(isinstance(each, HardenedTraceConfig) for each in configs):
            return
        config = self._config
        if self._follows_providers:
            config = trace_config_for(self._settings, None, _adopt_connector_of)
        adopt_connector(session.connector)
        if config is not None:
            config.freeze()
            # A new list: the old one may be the caller's own, and in use for other sessions.
            vars(session)[_ATTRIBUTE] = [*configs, config]
            with _lock:
                _sessions[id(session)] = session


class _WhenBuilt:
    """Stands in ``ClientSession`` for an attribute, sees a session set it, and is never asked for it.

    A descriptor without ``__get__``: what is read is the session's own attribute.

    Args:
        telling: What new sessions are to tell.
    """

    def __init__(self, telling: _Telling) -> None:
        self._telling = telling

    def __set__(self, session: aiohttp.ClientSession, value: object) -> None:
        attributes = vars(session)
        being_built = _ATTRIBUTE not in attributes
        attributes[_ATTRIBUTE] = value
        if being_built and not left_alone.get():
            with contained(instrument):
                self._telling.attach(session)


def _adopt_connector_of(session: aiohttp.ClientSession) -> None:
    adopt_connector(session.connector)


def instrument(settings: Settings = DEFAULTS, *, hooks: Iterable[PhaseHook] | None = None) -> None:
    """Let every ``ClientSession`` that is built from now on tell of its phases, whoever builds it.

    Called again, the latest settings hold for sessions built after that. Sessions of
    ``create_session`` say themselves what they tell, and are left alone.

    Args:
        settings: Only ``telemetry`` is used: timeouts, trust and resolver stay each session's own.
        hooks: As for ``create_session``; ``()``: nothing but notes on failures.

    Raises:
        SettingsError: The settings are none, or a hook is not callable.
    """
    when_built = _WhenBuilt(_Telling(settings, hooks))
    with _lock:
        setattr(aiohttp.ClientSession, _ATTRIBUTE, when_built)


def uninstrument() -> None:
    """Undo ``instrument()`` and every ``instrument_session()``, down to the last attribute.

    Requests that are on their way end as they would have, and are told of to their end.
    Does nothing where nothing is instrumented.
    """
    with _lock:
        if isinstance(vars(aiohttp.ClientSession).get(_ATTRIBUTE), _WhenBuilt):
            delattr(aiohttp.ClientSession, _ATTRIBUTE)
        sessions = list(_sessions.values())
        _sessions.clear()
    for session in sessions:
        _detach(session)
    give_back_connectors()


def instrument_session(
    session: aiohttp.ClientSession, settings: Settings = DEFAULTS, *, hooks: Iterable[PhaseHook] | None = None
) -> None:
    """Let a session that exists already tell of its phases.

    Called again, the latest settings hold. A session of ``create_session`` that tells
    already is left alone. ``uninstrument()`` undoes it.

    Args:
        session: Any ``aiohttp.ClientSession``, in use or not.
        settings: Only ``telemetry`` is used.
        hooks: As for ``create_session``; ``()``: nothing but notes on failures.

    Raises:
        SettingsError: It is no session, the settings are none, or a hook is not callable.
    """
    if not isinstance(session, aiohttp.ClientSession):
        raise SettingsError(f"session is {type(session).__name__}; it must be an aiohttp.ClientSession")
    telling = _Telling(settings, hooks)
    with _lock:
        known = _sessions.pop(id(session), None)
    if known is not None:
        _detach(session)
    telling.attach(session)


def _detach(session: aiohttp.ClientSession) -> None:
    attributes = vars(session)
    attributes[_ATTRIBUTE] = [each for each in attributes[_ATTRIBUTE] if not isinstance(each, HardenedTraceConfig)]

"""The shared contexts of this process: one per trust decision, built once, off the event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from aiohttp_hardened.exceptions import CertificateReloadError, SettingsError
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.tls._context import SharedSSLContext
from aiohttp_hardened.tls._resumption import tickets
from aiohttp_hardened.tls._trust import build, read_material

if TYPE_CHECKING:
    from aiohttp_hardened._settings import TLSSettings
    from aiohttp_hardened.tls._trust import Built

_MOST_KEPT: Final = 32
"""Contexts that are kept though nobody holds them: a service has few trust decisions, a test suite many."""

_lock: Final = threading.Lock()
_contexts: Final[weakref.WeakValueDictionary[TLSSettings, SharedSSLContext]] = weakref.WeakValueDictionary()
_kept: Final[OrderedDict[TLSSettings, SharedSSLContext]] = OrderedDict()
_building: Final[dict[TLSSettings, Future[SharedSSLContext]]] = {}


def peek(tls: TLSSettings) -> SharedSSLContext | None:
    """Return the context of a trust decision if it has been built."""
    return _contexts.get(tls)


def create_ssl_context(tls: TLSSettings) -> SharedSSLContext:
    """Return the context of a trust decision; builds it at once if need be, in this thread.

    Args:
        tls: The trust decision; equal ones give the same object.

    Raises:
        SettingsError: A file holds nothing that can serve; with OpenSSL's reason.
    """
    found = _contexts.get(tls)
    if found is not None:
        return found
    with _lock:
        # Again, for it may have been finished since: two contexts of one decision would share no tickets.
        found = _contexts.get(tls)
        if found is not None:
            return found
        future = _building.get(tls)
        mine = future is None
        if future is None:
            future = _begin(tls)
    if mine:
        _build(tls, future)
    return future.result()


async def context_ready(tls: TLSSettings) -> SharedSSLContext:
    """Return the context of a trust decision; builds it in a thread of its own if need be.

    However many wait, on whatever loops, it is built once. Who is cancelled does not
    disturb the others; after a failure the next one tries again.

    Args:
        tls: The trust decision.

    Raises:
        SettingsError: As for ``create_ssl_context``.
    """
    found = _contexts.get(tls)
    if found is not None:
        return found
    with _lock:
        found = _contexts.get(tls)
        if found is not None:
            return found
        future = _building.get(tls)
        if future is None:
            future = _begin(tls)
            threading.Thread(
                target=_build, args=(tls, future), name="aiohttp_hardened trust store", daemon=True
            ).start()
    return await asyncio.wrap_future(future)


def digest_of(context: SharedSSLContext) -> str | None:
    """Return the fingerprint of what a context is made of."""
    return _digests.get(context)


_digests: Final[weakref.WeakKeyDictionary[SharedSSLContext, str]] = weakref.WeakKeyDictionary()


def publish(context: SharedSSLContext, built: Built) -> None:
    """Write down what a context is made of now."""
    _digests[context] = built.digest
    if built.not_after is not None:
        figures.own_not_after[context.name, "client"] = built.not_after.timestamp()


def _begin(tls: TLSSettings) -> Future[SharedSSLContext]:
    future: Future[SharedSSLContext] = Future()
    # A future that runs cannot be cancelled, so a waiter that is takes nobody with it.
    future.set_running_or_notify_cancel()
    _building[tls] = future
    return future


def _build(tls: TLSSettings, future: Future[SharedSSLContext]) -> None:
    try:
        context = _make(tls)
    except BaseException as exc:  # noqa: BLE001  (whoever waits gets it)
        with _lock:
            _building.pop(tls, None)
        future.set_exception(exc)
        return
    with _lock:
        _contexts[tls] = context
        if tls.reload_interval is None:
            _kept[tls] = context
            if len(_kept) > _MOST_KEPT:
                _kept.popitem(last=False)
        _building.pop(tls, None)
    future.set_result(context)


def _make(tls: TLSSettings) -> SharedSSLContext:
    try:
        built = build(tls, read_material(tls))
    except CertificateReloadError as exc:
        raise SettingsError(f"{_fields(tls)}: {exc}") from exc
    context = SharedSSLContext(built.context, name_of(tls))
    figures.announce_reloads(context.name)
    publish(context, built)
    weakref.finalize(context, tickets.drop, context.number)
    if tls.reload_interval is not None:
        from aiohttp_hardened.tls._reload import watch  # noqa: PLC0415  (it needs this module)

        watch(tls, context, tls.reload_interval)
    return context


def name_of(tls: TLSSettings) -> str:
    """Return the name of a trust decision in telemetry."""
    if tls.name is not None:
        return tls.name
    parts: list[str] = [tls.trust] if tls.trust != "none" else []
    parts += ["private"] if tls.ca_files else []
    parts += ["mtls"] if tls.client_cert is not None else []
    return "+".join(parts)


def _fields(tls: TLSSettings) -> str:
    fields = [f"tls.trust={tls.trust!r}"]
    fields += [f"tls.ca_files={tls.ca_files!r}"] if tls.ca_files else []
    fields += [f"tls.client_cert={tls.client_cert!r}"] if tls.client_cert is not None else []
    return ", ".join(fields)

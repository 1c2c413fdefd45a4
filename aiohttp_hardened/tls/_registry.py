"""The shared contexts of this process: one per trust decision, built once, off the event loop.

Held weakly, so that a context goes with its last user; but the few that were used last
are kept, for a session that is made and closed per request would else pay 20-60 ms each
time. A context whose files are watched is not: its thread ends with its last user.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiohttp_hardened.exceptions import CertificateReloadError, ReloadResult, SettingsError
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.tls._context import SharedSSLContext
from aiohttp_hardened.tls._locks import ForkSafeLock
from aiohttp_hardened.tls._reload import Reloader
from aiohttp_hardened.tls._tickets import tickets
from aiohttp_hardened.tls._trust import read_trust

if TYPE_CHECKING:
    from aiohttp_hardened._settings import TLSSettings

_logger: Final = logging.getLogger("aiohttp_hardened")

_MOST_KEPT: Final = 8
"""Contexts that are kept though nobody holds them, 1-2 MB each with certifi; a service has few trust decisions."""

_lock: Final = ForkSafeLock()
_contexts: Final[weakref.WeakValueDictionary[TLSSettings, SharedSSLContext]] = weakref.WeakValueDictionary()
_kept: Final[OrderedDict[TLSSettings, SharedSSLContext]] = OrderedDict()
_building: Final[dict[TLSSettings, Future[SharedSSLContext]]] = {}


def peek(tls: TLSSettings) -> SharedSSLContext | None:
    """Return the context of a trust decision if it has been built."""
    return _contexts.get(tls)


def context_for(tls: TLSSettings) -> SharedSSLContext:
    """Return the context of a trust decision; builds it at once if need be, in this thread.

    Args:
        tls: The trust decision; equal ones give the same object.

    Raises:
        SettingsError: A file holds nothing that can serve; with OpenSSL's reason.
    """
    found = _contexts.get(tls)
    if found is not None:
        return found
    future, mine = _find_or_begin(tls)
    if mine:
        _build(tls, future)
    try:
        return future.result()
    except SettingsError as exc:
        raise _own(exc) from exc.__cause__


async def context_ready(tls: TLSSettings) -> SharedSSLContext:
    """Return the context of a trust decision; builds it in a thread of its own if need be.

    However many wait, on whatever loops, it is built once. Who is cancelled does not
    disturb the others; after a failure the next one tries again.

    Args:
        tls: The trust decision.

    Raises:
        SettingsError: As for ``context_for``.
    """
    found = _contexts.get(tls)
    if found is not None:
        return found
    future, mine = _find_or_begin(tls)
    if mine:
        # No daemon: the interpreter's end waits the few milliseconds rather than stop a thread inside OpenSSL.
        threading.Thread(target=_build, args=(tls, future), name="aiohttp_hardened trust store").start()
    try:
        return await asyncio.wrap_future(future)
    except SettingsError as exc:
        raise _own(exc) from exc.__cause__


def reload_tls(tls: TLSSettings | ssl.SSLContext) -> ReloadResult:
    """Read a trust decision's files again, and serve with them if they can serve.

    Blocks for 20-60 ms, longer while a pair of files is half written; call it from any
    thread, from a coroutine with ``asyncio.to_thread``. Once it returns ``applied`` no
    request gets a connection that was made with the old files; a rejected reload leaves
    everything as it was, is logged with OpenSSL's reason, and counted.

    Args:
        tls: The trust decision, as it was given to ``create_session``. If nobody uses it
            yet, its context is built now. Or a context, a server's for example, that
            ``create_ssl_context`` or ``create_server_ssl_context`` made.

    Raises:
        SettingsError: The context is not one that this package made.
    """
    if isinstance(tls, ssl.SSLContext):
        return reloader_of(tls).reload()
    context = peek(tls)
    if context is not None and context.reloader is not None:
        return context.reloader.reload()
    name = name_of(tls)
    try:
        built = context_for(tls).reloader
    except SettingsError as exc:
        _logger.error("tls reload of %r rejected, and nothing was loaded before: %s", name, exc)  # noqa: TRY400  # the reason says it
        result = ReloadResult("rejected", reason=str(exc.__cause__))
    else:
        result = ReloadResult("applied", not_after=built.not_after if built is not None else None)
    figures.count_reload(name, result.outcome)
    return result


def reloader_of(context: ssl.SSLContext) -> Reloader:
    """Return what reloads a context.

    Raises:
        SettingsError: It is not one that this package made.
    """
    reloader = context.reloader if isinstance(context, SharedSSLContext) else None
    if reloader is None:
        raise SettingsError(
            f"the context is {type(context).__name__}, which cannot be reloaded; "
            "it must be one that create_server_ssl_context() or create_ssl_context() made"
        )
    return reloader


def name_of(tls: TLSSettings) -> str:
    """Return the name of a trust decision in telemetry: ``tls.name``, or its trust and the names of its files."""
    if tls.name is not None:
        return tls.name
    parts = [tls.trust] if tls.trust != "none" else []
    files = [*tls.ca_files, *([tls.client_cert] if tls.client_cert is not None else [])]
    return "+".join([*parts, *(Path(path).name for path in files)])


def _find_or_begin(tls: TLSSettings) -> tuple[Future[SharedSSLContext], bool]:
    """Return the build of a context, and whether the caller is the one to do it."""
    with _lock:
        future = _building.get(tls)
        if future is not None:
            return future, False
        future = Future[SharedSSLContext]()
        # A future that runs cannot be cancelled, so a waiter that is takes nobody with it.
        future.set_running_or_notify_cancel()
        # Again, for it may have been finished since: two contexts of one decision would share no tickets.
        found = _contexts.get(tls)
        if found is not None:
            future.set_result(found)
            return future, False
        _building[tls] = future
        return future, True


def _own(exc: SettingsError) -> SettingsError:
    """Return an error for one of those who waited for the same build: notes will be written on it."""
    return SettingsError(str(exc))


def _build(tls: TLSSettings, future: Future[SharedSSLContext]) -> None:
    try:
        context = _make(tls)
    except BaseException as exc:  # noqa: BLE001  # whoever waits gets it
        with _lock:
            _building.pop(tls, None)
        future.set_exception(exc)
        return
    dropped: SharedSSLContext | None = None
    with _lock:
        _contexts[tls] = context
        if tls.reload_interval is None:
            _kept[tls] = context
            if len(_kept) > _MOST_KEPT:
                _, dropped = _kept.popitem(last=False)
        _building.pop(tls, None)
    del dropped
    future.set_result(context)


def _make(tls: TLSSettings) -> SharedSSLContext:
    reloader = Reloader(name_of(tls), "client", lambda: read_trust(tls))
    try:
        context = reloader.create()
    except CertificateReloadError as exc:
        raise SettingsError(f"{_fields(tls)}: {exc}") from exc
    context.on_swap(tickets.drop_retired)
    weakref.finalize(context, tickets.drop_retired_later).atexit = False
    if tls.reload_interval is not None:
        reloader.watch(tls.reload_interval)
    return context


def _fields(tls: TLSSettings) -> str:
    fields = [f"tls.trust={tls.trust!r}"]
    fields += [f"tls.ca_files={tls.ca_files!r}"] if tls.ca_files else []
    fields += [f"tls.client_cert={tls.client_cert!r}"] if tls.client_cert is not None else []
    fields += [f"tls.client_key={tls.client_key!r}"] if tls.client_key is not None else []
    return ", ".join(fields)


# The thread that was building does not exist in a forked child; who comes next there builds anew.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_building.clear)

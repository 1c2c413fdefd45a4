"""Certificates that change: read once, validate apart, swap one reference; a bad one changes nothing."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from aiohttp_hardened.exceptions import CertificateReloadError, ReloadResult
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.tls._registry import create_ssl_context, digest_of, peek, publish
from aiohttp_hardened.tls._resumption import tickets
from aiohttp_hardened.tls._trust import build, read_material

if TYPE_CHECKING:
    from aiohttp_hardened._settings import TLSSettings
    from aiohttp_hardened.tls._context import SharedSSLContext

_logger = logging.getLogger("aiohttp_hardened")

_ATTEMPTS: Final = 3
_SECONDS_BETWEEN: Final = 0.1
"""A certificate and its key are two files: for a moment they may not belong together."""

_reloading: Final = threading.Lock()


def reload_tls(tls: TLSSettings) -> ReloadResult:
    """Read a trust decision's files again, and serve with them if they can serve.

    Blocks for 10-40 ms, longer while a pair of files is half written; call it from any
    thread, from a coroutine with ``asyncio.to_thread``. Once it returns ``applied`` no
    request gets a connection that was made with the old files; a rejected reload leaves
    everything as it was, is logged with OpenSSL's reason, and counted.

    Args:
        tls: The trust decision, as it was given to ``create_session``.
    """
    context = peek(tls)
    if context is None:
        create_ssl_context(tls)
        return ReloadResult("applied")
    return _reload(tls, context)


def _reload(tls: TLSSettings, context: SharedSSLContext) -> ReloadResult:
    with _reloading:
        try:
            result = _read_and_swap(tls, context)
        except CertificateReloadError as exc:
            _logger.warning("tls reload of %r rejected, the old context serves on: %s", context.name, exc)
            result = ReloadResult("rejected", reason=str(exc))
        figures.count_reload(context.name, result.outcome)
        return result


def _read_and_swap(tls: TLSSettings, context: SharedSSLContext) -> ReloadResult:
    for attempt in range(1, _ATTEMPTS + 1):
        material = read_material(tls)
        if material.digest == digest_of(context):
            return ReloadResult("unchanged")
        try:
            built = build(tls, material)
        except CertificateReloadError:
            if attempt == _ATTEMPTS:
                raise
            time.sleep(_SECONDS_BETWEEN)
            continue
        context.swap(built.context)
        tickets.drop(context.number)
        publish(context, built)
        _logger.info("tls reload of %r applied, generation %d", context.name, context.generation)
        return ReloadResult("applied", not_after=built.not_after)
    raise AssertionError


def watch(tls: TLSSettings, context: SharedSSLContext, interval: float) -> None:
    """Look at the files every so often, on a thread that ends with the context.

    Args:
        tls: The trust decision.
        context: Its context.
        interval: Seconds.
    """
    gone = threading.Event()
    weakref.finalize(context, gone.set)
    threading.Thread(
        target=_watch, args=(tls, weakref.ref(context), interval, gone), name="aiohttp_hardened reload", daemon=True
    ).start()


def _watch(tls: TLSSettings, reference: weakref.ref[SharedSSLContext], interval: float, gone: threading.Event) -> None:
    while not gone.wait(interval):
        context = reference()
        if context is None:
            return
        try:
            _reload(tls, context)
        except Exception:
            _logger.exception("tls reload of %r failed; the old context serves on", context.name)
        del context

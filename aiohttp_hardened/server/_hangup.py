"""SIGHUP reloads certificates: the convention of servers, and of what renews certificates for them."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiohttp_hardened.tls._registry import reloader_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from aiohttp import web

    from aiohttp_hardened.tls._reload import Reloader

_logger: Final = logging.getLogger("aiohttp_hardened")

_SIGHUP: Final[int | None] = getattr(signal, "SIGHUP", None)  # Windows has none


def reload_on_sighup(*contexts: ssl.SSLContext) -> Callable[[web.Application], AsyncIterator[None]]:
    """Return a function for ``app.cleanup_ctx``: while the app runs, SIGHUP reloads contexts.

    For apps that another runner runs (``web.run_app``, an ``AppRunner`` of your own)::

        context = create_server_ssl_context("/etc/tls/tls.crt", "/etc/tls/tls.key")
        app.cleanup_ctx.append(reload_on_sighup(context))
        web.run_app(app, ssl_context=context)

    A process has one handler for a signal: this one takes the place of what was there. The
    reload runs in a thread; what came of it is in the log, each time.

    Args:
        contexts: From ``create_server_ssl_context``, or ``create_ssl_context`` for the
            trust of clients in the same process.

    Raises:
        SettingsError: One is not of this package.
    """
    reloaders = tuple(reloader_of(context) for context in contexts)

    async def reload_while_it_runs(_app: web.Application) -> AsyncIterator[None]:
        async with reloading_on_sighup(reloaders):
            yield

    return reload_while_it_runs


@asynccontextmanager
async def reloading_on_sighup(reloaders: tuple[Reloader, ...]) -> AsyncGenerator[None]:
    """Reload at each SIGHUP inside the block."""
    loop = asyncio.get_running_loop()
    hangup = asyncio.Event()
    if not reloaders or _SIGHUP is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(_SIGHUP)
    loop.add_signal_handler(_SIGHUP, hangup.set)
    reloading = loop.create_task(_reload_at(hangup, reloaders))
    try:
        yield
    finally:
        loop.remove_signal_handler(_SIGHUP)
        signal.signal(_SIGHUP, before)  # under nohup it was ignored, and must be again
        reloading.cancel()
        await asyncio.wait([reloading])


async def _reload_at(hangup: asyncio.Event, reloaders: tuple[Reloader, ...]) -> None:
    while await hangup.wait():
        hangup.clear()
        for reloader in reloaders:
            try:
                await _in_a_thread(partial(reloader.reload, asked=True), reloader.name)
            except Exception:
                _logger.exception("tls reload of %r failed, what was loaded serves on", reloader.name)


async def _in_a_thread(call: Callable[[], Any], name: str) -> None:
    """Wait for a call in a thread of its own: the default executor may be full for a while.

    Who is cancelled waits for the thread, at most for the moments of a reload.
    """
    done = Future[None]()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            call()
        except BaseException as exc:  # noqa: BLE001  # whoever waits gets it
            done.set_exception(exc)
        else:
            done.set_result(None)

    threading.Thread(target=run, name=f"aiohttp_hardened reloads {name}").start()
    waiting = asyncio.wrap_future(done)
    try:
        await asyncio.shield(waiting)
    except asyncio.CancelledError:
        await asyncio.wait([waiting])
        raise

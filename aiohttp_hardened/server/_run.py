"""``web.run_app`` with hardened sites: what it does around them is aiohttp's, step by step."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web
from aiohttp.log import access_logger
from aiohttp.web_log import AccessLogger

from aiohttp_hardened._settings import SITE, SiteSettings
from aiohttp_hardened.exceptions import SettingsError
from aiohttp_hardened.server._context import create_server_ssl_context
from aiohttp_hardened.server._hangup import reloading_on_sighup
from aiohttp_hardened.server._site import HardenedSockSite, HardenedTCPSite, HardenedUnixSite, check_server_context
from aiohttp_hardened.tls._context import SharedSSLContext

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable
    from os import PathLike

    from aiohttp.abc import AbstractAccessLogger

    from aiohttp_hardened.timing._handshake import HandshakeHook


def run_app(  # noqa: PLR0913  # those of ``web.run_app``
    app: web.Application | Awaitable[web.Application],
    *,
    host: str | Iterable[str] | None = None,
    port: int | None = None,
    path: str | PathLike[str] | Iterable[str | PathLike[str]] | None = None,
    sock: socket.socket | Iterable[socket.socket] | None = None,
    shutdown_timeout: float = 60.0,
    keepalive_timeout: float = 75.0,
    ssl_context: ssl.SSLContext | None = None,
    certfile: str | PathLike[str] | None = None,
    keyfile: str | PathLike[str] | None = None,
    client_ca: str | PathLike[str] | None = None,
    reload_interval: float | None = None,
    ssl_handshake_timeout: float = SITE.ssl_handshake_timeout,
    print: Callable[..., None] | None = builtins.print,  # noqa: A002  # aiohttp's name
    backlog: int = SITE.backlog,
    access_log_class: type[AbstractAccessLogger] = AccessLogger,
    access_log_format: str = AccessLogger.LOG_FORMAT,
    access_log: logging.Logger | None = access_logger,
    handle_signals: bool = True,
    reuse_address: bool | None = None,
    reuse_port: bool | None = None,
    handler_cancellation: bool = False,
    loop: asyncio.AbstractEventLoop | None = None,
    hooks: Iterable[HandshakeHook] | None = None,
    **kwargs: Any,
) -> None:
    """Run an app until SIGTERM or SIGINT, as ``web.run_app``; SIGHUP reloads its certificate.

    It takes every keyword of ``web.run_app`` and means the same by it. What is added or
    differs: ``backlog`` is 1024 and not 128; a TLS handshake has a deadline; handshakes are
    told to OpenTelemetry; and TLS is said by files as well as by a context.

    Args:
        app: The application, or a coroutine that makes it.
        host: One or several hosts to listen on.
        port: Port for them; ``None``: 8443 with TLS, 8080 without.
        path: One or several unix sockets to listen on.
        sock: One or several sockets that are bound.
        shutdown_timeout: Seconds that handlers get to finish.
        keepalive_timeout: Seconds that an idle connection is kept.
        ssl_context: From ``create_server_ssl_context``; or give ``certfile``. With a plain
            ``ssl.SSLContext`` SIGHUP reloads nothing, and ends the process as by default.
        certfile: PEM file of the certificate, with its intermediates.
        keyfile: PEM file of its key; ``None`` when the key is in ``certfile``.
        client_ca: PEM file of the authorities whose client certificates are asked for.
        reload_interval: Seconds between two looks at the files; ``None``: SIGHUP alone reloads.
        ssl_handshake_timeout: Seconds after which a handshake that is not over is ended.
        print: What tells where it listens; ``None``: nothing.
        backlog: Connections that the kernel holds until they are accepted.
        access_log_class: As for ``web.run_app``.
        access_log_format: As for ``web.run_app``.
        access_log: As for ``web.run_app``.
        handle_signals: End at SIGTERM and SIGINT, and reload at SIGHUP.
        reuse_address: As for ``loop.create_server``.
        reuse_port: Let several processes listen on one port.
        handler_cancellation: Cancel a handler whose client went away.
        loop: The loop to run on; it is closed at the end. ``None``: a new one.
        hooks: Called with the `HandshakeRecord` of each TLS handshake; ``None``: spans and
            metrics through the global OpenTelemetry providers; ``()``: silence.
        kwargs: For the ``web.AppRunner``.

    Raises:
        SettingsError: A value that cannot be meant, or files that cannot serve.
    """
    settings = SiteSettings(backlog=backlog, ssl_handshake_timeout=ssl_handshake_timeout)
    context = _context(ssl_context, certfile, keyfile, client_ca, reload_interval)
    if loop is None:
        loop = asyncio.new_event_loop()
    if loop.get_debug() and access_log is not None and access_log.name == "aiohttp.access":
        _show_access(access_log)

    def sites(runner: web.BaseRunner) -> list[web.BaseSite]:
        tcp = [
            HardenedTCPSite(
                runner,
                each,
                port,
                ssl_context=context,
                backlog=backlog,
                ssl_handshake_timeout=ssl_handshake_timeout,
                reuse_address=reuse_address,
                reuse_port=reuse_port,
                hooks=hooks,
            )
            for each in _hosts(host, elsewhere=path is not None or sock is not None, port=port)
        ]
        unix = [
            HardenedUnixSite(runner, each, settings, ssl_context=context, hooks=hooks)
            for each in _each(path, (str, os.PathLike))
        ]
        bound = [
            HardenedSockSite(runner, each, settings, ssl_context=context, hooks=hooks)
            for each in _each(sock, socket.socket)
        ]
        return [*tcp, *unix, *bound]

    options = {
        "shutdown_timeout": shutdown_timeout,
        "keepalive_timeout": keepalive_timeout,
        "access_log_class": access_log_class,
        "access_log_format": access_log_format,
        "access_log": access_log,
        "handle_signals": handle_signals,
        "handler_cancellation": handler_cancellation,
        **kwargs,
    }
    reloader = context.reloader if isinstance(context, SharedSSLContext) and handle_signals else None
    serving = _serve(app, sites, options, (reloader,) if reloader is not None else (), print)
    _run(serving, loop)


async def _serve(
    app: web.Application | Awaitable[web.Application],
    sites: Callable[[web.BaseRunner], list[web.BaseSite]],
    options: dict[str, Any],
    reloaders: tuple[Any, ...],
    tell: Callable[..., None] | None,
) -> None:
    """Serve until cancelled, or until a signal ends the loop."""
    runner = web.AppRunner(app if isinstance(app, web.Application) else await app, **options)
    async with reloading_on_sighup(reloaders):
        await runner.setup()
        try:
            for site in sites(runner):
                await site.start()
            if tell is not None:
                names = ", ".join(sorted(site.name for site in runner.sites))
                tell(f"======== Running on {names} ========\n(Press CTRL+C to quit)")
            await asyncio.get_running_loop().create_future()
        finally:
            await runner.cleanup()


def _run(serving: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Run to the end: first the app's own, so that its handlers finish; then whatever else runs."""
    main = loop.create_task(serving)
    try:
        asyncio.set_event_loop(loop)
        with contextlib.suppress(web.GracefulExit, KeyboardInterrupt):
            loop.run_until_complete(main)
    finally:
        try:
            if not main.done():
                main.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    loop.run_until_complete(main)
        finally:
            _cancel_all(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
    for task in tasks:
        if not task.cancelled() and (exc := task.exception()) is not None:
            message = "unhandled exception during run_app() shutdown"
            loop.call_exception_handler({"message": message, "exception": exc, "task": task})


def _context(
    context: ssl.SSLContext | None,
    certfile: str | PathLike[str] | None,
    keyfile: str | PathLike[str] | None,
    client_ca: str | PathLike[str] | None,
    reload_interval: float | None,
) -> ssl.SSLContext | None:
    """Return the context that was given, or one of the files."""
    if certfile is not None:
        if context is not None:
            raise SettingsError("server.ssl_context and server.certfile are both set; say one of them")
        return create_server_ssl_context(certfile, keyfile, client_ca=client_ca, reload_interval=reload_interval)
    for name, value in (("keyfile", keyfile), ("client_ca", client_ca), ("reload_interval", reload_interval)):
        if value is not None:
            where = "; with ssl_context= say it to create_server_ssl_context()" if context is not None else ""
            raise SettingsError(f"server.{name} is set but server.certfile is not{where}")
    check_server_context(context)
    return context


def _hosts(host: str | Iterable[str] | None, *, elsewhere: bool, port: int | None) -> list[str | None]:
    """Return the hosts to listen on; all interfaces when nothing says where, or a port alone does."""
    if host is not None:
        return [host] if isinstance(host, str) else list(host)
    return [None] if not elsewhere or port is not None else []


def _each(value: Any, kind: type | tuple[type, ...]) -> list[Any]:
    if value is None:
        return []
    return [value] if isinstance(value, kind) else list(cast("Iterable[Any]", value))


def _show_access(access_log: logging.Logger) -> None:
    if access_log.level == logging.NOTSET:
        access_log.setLevel(logging.DEBUG)
    if not access_log.hasHandlers():
        access_log.addHandler(logging.StreamHandler())

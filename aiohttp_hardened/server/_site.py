"""Sites with a backlog for bursts, a deadline for handshakes, and telemetry of both ends of them.

Seams: ``loop.create_server(start_serving=False)`` binds, the `Acceptor` accepts. Private
names of aiohttp: ``BaseSite._runner``, ``_ssl_context``, ``_backlog``, ``_server``;
``TCPSite._host``, ``_port``, ``_bound_port``, ``_reuse_address``, ``_reuse_port``;
``UnixSite._path``; ``SockSite._sock``.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web

from aiohttp_hardened._settings import SITE, SiteSettings
from aiohttp_hardened.exceptions import SettingsError
from aiohttp_hardened.server._acceptor import Acceptor
from aiohttp_hardened.telemetry._handshakes import default_handshake_hook

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable
    from os import PathLike

    from aiohttp_hardened.timing._handshake import HandshakeHook

_logger: Final = logging.getLogger("aiohttp_hardened")

_SOMAXCONN: Final = Path("/proc/sys/net/core/somaxconn")


class _Accepting(web.BaseSite):
    """What the three kinds of sites have in common."""

    _acceptor: Acceptor | None = None
    _settings: SiteSettings
    _hooks: tuple[HandshakeHook, ...]

    def _set(self, settings: SiteSettings, hooks: Iterable[HandshakeHook] | None) -> None:
        check_server_context(self._ssl_context)
        self._settings = settings
        self._hooks = (default_handshake_hook(),) if hooks is None else tuple(hooks)

    async def _bind(self, loop: asyncio.AbstractEventLoop, protocol: Any) -> asyncio.Server:
        """Bind the sockets, without listening."""
        raise NotImplementedError

    async def start(self) -> None:
        """Listen."""
        _warn_of_limit(self._settings.backlog)
        if self._ssl_context is None:
            await super().start()
            return
        await web.BaseSite.start(self)
        protocol = self._runner.server
        assert protocol is not None  # noqa: S101  # ``BaseSite`` asked for it
        self._server = server = await self._bind(asyncio.get_running_loop(), protocol)
        self._acceptor = Acceptor(protocol, self._ssl_context, self._settings.ssl_handshake_timeout, self._hooks)
        for bound in server.sockets:
            # The loop's own view of a socket does not accept.
            listener: socket.socket = cast("Any", bound).dup()
            listener.settimeout(0)
            listener.listen(self._settings.backlog)
            self._acceptor.accept(listener)

    async def stop(self) -> None:
        """Listen no more, and give up the handshakes that have begun."""
        await super().stop()
        if self._acceptor is not None:
            await self._acceptor.stop()


class HardenedTCPSite(_Accepting, web.TCPSite):
    """A ``web.TCPSite`` that takes bursts, and ends handshakes that stall.

    Args:
        runner: The runner; set up already.
        host: Host name or address to listen on; ``None``: all interfaces.
        port: Port; 0: any free one; ``None``: 8443 with TLS, 8080 without.
        ssl_context: From ``create_server_ssl_context``. A plain ``ssl.SSLContext`` for
            servers serves as well, with the same deadline and telemetry, but its
            certificate cannot be renewed while it serves. ``None``: plain HTTP.
        backlog: Connections that the kernel holds until they are accepted. Beyond it SYNs
            are dropped, and a client waits about a second before it tries again. Linux
            cuts it to ``net.core.somaxconn``; a warning says so.
        ssl_handshake_timeout: Seconds after which a handshake that is not over is ended.
        reuse_address: As for ``loop.create_server``.
        reuse_port: Let several processes listen on one port.
        hooks: Called with the `HandshakeRecord` of each TLS handshake; ``None``: spans and
            metrics through the global OpenTelemetry providers; ``()``: silence.

    Raises:
        SettingsError: A value that cannot be meant.
    """

    def __init__(  # noqa: PLR0913  # those of ``web.TCPSite``
        self,
        runner: web.BaseRunner,
        host: str | None = None,
        port: int | None = None,
        *,
        ssl_context: ssl.SSLContext | None = None,
        backlog: int = SITE.backlog,
        ssl_handshake_timeout: float = SITE.ssl_handshake_timeout,
        reuse_address: bool | None = None,
        reuse_port: bool | None = None,
        hooks: Iterable[HandshakeHook] | None = None,
    ) -> None:
        settings = SiteSettings(backlog=backlog, ssl_handshake_timeout=ssl_handshake_timeout)
        super().__init__(
            runner,
            host,
            port,
            ssl_context=ssl_context,
            backlog=backlog,
            reuse_address=reuse_address,
            reuse_port=reuse_port,
        )
        self._set(settings, hooks)

    async def _bind(self, loop: asyncio.AbstractEventLoop, protocol: Any) -> asyncio.Server:
        server = await loop.create_server(
            protocol,
            self._host,
            self._port,
            reuse_address=self._reuse_address,
            reuse_port=self._reuse_port,
            start_serving=False,
        )
        self._bound_port = server.sockets[0].getsockname()[1]
        return server


class HardenedUnixSite(_Accepting, web.UnixSite):
    """A ``web.UnixSite`` with the same; `run_app` makes it of ``path=``."""

    def __init__(
        self,
        runner: web.BaseRunner,
        path: str | PathLike[str],
        settings: SiteSettings,
        *,
        ssl_context: ssl.SSLContext | None,
        hooks: Iterable[HandshakeHook] | None,
    ) -> None:
        super().__init__(runner, path, ssl_context=ssl_context, backlog=settings.backlog)
        self._set(settings, hooks)

    async def _bind(self, loop: asyncio.AbstractEventLoop, protocol: Any) -> asyncio.Server:
        return await loop.create_unix_server(protocol, self._path, start_serving=False)


class HardenedSockSite(_Accepting, web.SockSite):
    """A ``web.SockSite`` with the same; `run_app` makes it of ``sock=``."""

    def __init__(
        self,
        runner: web.BaseRunner,
        sock: socket.socket,
        settings: SiteSettings,
        *,
        ssl_context: ssl.SSLContext | None,
        hooks: Iterable[HandshakeHook] | None,
    ) -> None:
        super().__init__(runner, sock, ssl_context=ssl_context, backlog=settings.backlog)
        self._set(settings, hooks)

    async def _bind(self, loop: asyncio.AbstractEventLoop, protocol: Any) -> asyncio.Server:
        return await loop.create_server(protocol, sock=self._sock, start_serving=False)


def check_server_context(context: Any) -> None:
    """Refuse what is no context for servers.

    Raises:
        SettingsError: It names what was given.
    """
    if context is None:
        return
    if not isinstance(context, ssl.SSLContext):
        raise SettingsError(
            f"server.ssl_context is {context!r}; it must be an ssl.SSLContext, "
            "for example from create_server_ssl_context(certfile, keyfile), or None"
        )
    if context.protocol is ssl.PROTOCOL_TLS_CLIENT:
        raise SettingsError(
            "server.ssl_context is a context for clients; a server needs create_server_ssl_context(certfile, keyfile)"
        )


def _warn_of_limit(backlog: int) -> None:
    try:
        limit = int(_SOMAXCONN.read_text("ascii"))
    except (OSError, ValueError):
        return
    if backlog > limit:
        _logger.warning(
            "a backlog of %d is cut to %d by net.core.somaxconn: a burst of connections above that "
            "waits a second for the retransmission of SYNs. Raise it with sysctl, or ask for less",
            backlog,
            limit,
        )

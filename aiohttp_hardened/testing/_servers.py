"""HTTP and HTTPS servers on loopback, with routes for what tests need."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from aiohttp_hardened.testing._ca import CertificateFiles

__all__ = ["HTTPServer", "TLSServer", "server_context"]

_SECONDS_FOR_HANDLERS: Final = 0.2


class HTTPServer:
    """A server on loopback, as an async context manager.

    ``/``  200 and a small body.
    ``/slow?seconds=0.2``  the headers come late.
    ``/stream?chunks=3&seconds=0.1``  the body comes in pieces, ``seconds`` apart.
    ``/bytes?count=1000``  a body of that size.
    ``/status/503``  that status.
    ``/redirect?to=URL&status=302``  a redirect.
    ``/cut?promised=100&sent=10``  closes inside the body.
    ``/close-keepalive``  answers the first request of each connection, and closes at the
    second without an answer: a client that reuses the connection must resend.
    ``/echo``  JSON: ``method``, ``path``, ``headers`` (pairs, as sent), ``body``, ``client`` (the common
    name of its certificate), ``tls_version``, ``session_reused``.
    ``/ws``  a websocket that echoes text; ``/ws?refuse=1`` answers 403.

    Args:
        host: Address to listen on.
        port: Port; 0: any free one.
        unix_path: Listen on this unix socket instead.
    """

    scheme = "http"

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, unix_path: str | Path | None = None) -> None:
        self.host = host
        self.port = port
        self.requests: list[web.BaseRequest] = []
        """Every request that arrived, in order."""
        self.connections = 0
        """Connections on which a request arrived."""
        self._unix_path = unix_path
        self._ssl_context: ssl.SSLContext | None = None
        self._seen: set[asyncio.Transport] = set()
        self._runner: web.AppRunner | None = None

    def url(self, path: str = "/", *, host: str | None = None) -> str:
        """Return the URL of a route.

        Args:
            path: Path and query.
            host: A name to use in place of the address; the client needs a resolver that knows it.
        """
        name = host or self.host
        return f"{self.scheme}://{f'[{name}]' if ':' in name else name}:{self.port}{path}"

    async def __aenter__(self) -> Self:
        """Start to listen."""
        app = web.Application(middlewares=[self._count])
        app.add_routes(_routes())
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=_SECONDS_FOR_HANDLERS
        )
        await self._runner.setup()
        if self._unix_path is not None:
            await web.UnixSite(self._runner, str(self._unix_path), ssl_context=self._ssl_context).start()
            return self
        await web.TCPSite(self._runner, self.host, self.port, ssl_context=self._ssl_context, backlog=1024).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._seen.clear()

    @web.middleware
    async def _count(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(request)
        if request.transport is not None and request.transport not in self._seen:
            self._seen.add(request.transport)
            self.connections += 1
        response: web.StreamResponse = await handler(request)
        return response


class TLSServer(HTTPServer):
    """An `HTTPServer` that speaks TLS.

    Args:
        certificate: What it shows.
        host: Address to listen on.
        port: Port; 0: any free one.
        unix_path: Listen on this unix socket instead.
        minimum_version: Of TLS.
        maximum_version: Of TLS.
        client_ca: Require a client certificate from this authority (a PEM file).
        context: Use this context instead of one that is built from the above.
    """

    scheme = "https"

    def __init__(
        self,
        certificate: CertificateFiles | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        unix_path: str | Path | None = None,
        minimum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2,
        maximum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        client_ca: Path | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(host=host, port=port, unix_path=unix_path)
        self.server_names: list[str | None] = []
        """The names (SNI) that clients asked for, one per handshake; not with a ``context=`` of the caller's."""
        if context is None:
            if certificate is None:
                raise TypeError("TLSServer needs a certificate or a context")
            context = server_context(certificate, client_ca=client_ca)
            context.minimum_version, context.maximum_version = minimum_version, maximum_version
            context.sni_callback = self._note_name
        self._ssl_context = context

    def _note_name(self, _connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        self.server_names.append(name)


def server_context(certificate: CertificateFiles, *, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return a plain server context.

    Args:
        certificate: What it shows.
        client_ca: Require a client certificate from this authority (a PEM file).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _routes() -> list[web.RouteDef]:
    return [
        web.get("/", _hello),
        web.get("/slow", _slow),
        web.get("/stream", _stream),
        web.get("/bytes", _bytes),
        web.route("*", "/status/{code}", _status),
        web.route("*", "/redirect", _redirect),
        web.get("/cut", _cut),
        web.route("*", "/close-keepalive", _CloseKeepalive().handle),
        web.route("*", "/echo", _echo),
        web.get("/ws", _websocket),
    ]


async def _hello(_request: web.Request) -> web.Response:
    return web.Response(text="hello\n")


async def _slow(request: web.Request) -> web.Response:
    await asyncio.sleep(float(request.query.get("seconds", "0.2")))
    return web.Response(text="slow\n")


async def _stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(int(request.query.get("chunks", "3"))):
        await response.write(b"x" * 1000)
        await asyncio.sleep(float(request.query.get("seconds", "0.1")))
    return response


async def _bytes(request: web.Request) -> web.Response:
    return web.Response(body=b"x" * int(request.query.get("count", "1000")))


async def _status(request: web.Request) -> web.Response:
    return web.Response(status=int(request.match_info["code"]))


async def _redirect(request: web.Request) -> web.Response:
    return web.Response(status=int(request.query.get("status", "302")), headers={"Location": request.query["to"]})


async def _cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": request.query.get("promised", "100")})
    await response.prepare(request)
    await response.write(b"x" * int(request.query.get("sent", "10")))
    if request.transport is not None:
        request.transport.close()
    return response


class _CloseKeepalive:
    def __init__(self) -> None:
        self._served: set[asyncio.Transport] = set()

    async def handle(self, request: web.Request) -> web.Response:
        transport = request.transport
        assert transport is not None  # noqa: S101  # the request has just arrived on it
        if transport in self._served:
            transport.close()
        else:
            self._served.add(transport)
        return web.Response(text="once\n")


async def _echo(request: web.Request) -> web.Response:
    connection = request.get_extra_info("ssl_object")
    peer: dict[str, Any] = request.get_extra_info("peercert") or {}
    subject: dict[str, str] = {key: value for part in peer.get("subject", ()) for key, value in part}
    return web.json_response(
        {
            "method": request.method,
            "path": request.path_qs,
            "headers": [[key.decode(), value.decode()] for key, value in request.raw_headers],
            "body": await request.text(),
            "client": subject.get("commonName"),
            "tls_version": connection and connection.version(),
            "session_reused": connection and connection.session_reused,
        }
    )


async def _websocket(request: web.Request) -> web.StreamResponse:
    if request.query.get("refuse"):
        return web.Response(status=403)
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        if message.type is web.WSMsgType.TEXT:
            await socket.send_str(message.data)
    return socket

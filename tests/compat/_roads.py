"""The roads by which a package comes to tell of its phases, and which of them each package permits.

README's table "Packages" is this file's `PACKAGES`, and each is driven over each of its roads.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import pytest
from aiohttp import web

from aiohttp_hardened import (
    DNSSettings,
    Phase,
    Settings,
    create_connector,
    create_session,
    create_trace_config,
    instrument,
    uninstrument,
)
from aiohttp_hardened.testing import FakeNameServer, PhaseRecorder, server_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp_hardened.testing import CertificateFiles

LITERAL: Final = [Phase.TCP, Phase.SETUP, Phase.REQUEST, Phase.BODY]
COLD: Final = [Phase.DNS, *LITERAL]
COLD_TLS: Final = [Phase.DNS, Phase.TCP, Phase.TLS, Phase.SETUP, Phase.REQUEST, Phase.BODY]
REUSED: Final = [Phase.REQUEST, Phase.BODY]


class Road(StrEnum):
    CONNECTOR = "connector="
    """A session of `create_session`, or a connector of `create_connector` with our TraceConfig beside it."""
    TRACE_CONFIGS = "trace_configs="
    """Our TraceConfig, in a session that the package or its user builds."""
    INSTRUMENT = "instrument()"
    """Nothing is handed over."""


ALL: Final = frozenset(Road)


@dataclass(frozen=True, kw_only=True)
class Package:
    """What README says of a package.

    Args:
        handed_over: Where the package takes a session, a connector or a TraceConfig.
        roads: The roads that it permits.
        told: What is told of its requests.
    """

    handed_over: str
    roads: frozenset[Road] = ALL
    told: str = "every phase"


PACKAGES: Final = {
    "aiobotocore": Package(handed_over="takes none: it builds its sessions", roads=frozenset({Road.INSTRUMENT})),
    "aiohttp-client-cache": Package(
        handed_over="`CachedSession(connector=…, trace_configs=…)`",
        told="every phase; of what its cache has nothing",
    ),
    "aiohttp-retry": Package(handed_over="`RetryClient(client_session=…)`", told="every phase of every try"),
    "aiohttp-socks": Package(
        handed_over="`create_session(connector=ProxyConnector(…))`", told="set-up as a whole, and TLS in it"
    ),
    "aioresponses": Package(handed_over="the session", told="every phase of what is real; of what is mocked nothing"),
    "discord.py": Package(handed_over="`Client(connector=…, http_trace=…)`"),
    "gql": Package(handed_over="`AIOHTTPTransport(client_session_args=…)`"),
    "proxy.py": Package(handed_over="`session.get(proxy=…)`", told="every phase, the tunnel and both handshakes"),
    "pytest-aiohttp": Package(handed_over="`aiohttp_client(app, connector=…, trace_configs=…)`"),
    "slack-sdk": Package(handed_over="`AsyncWebClient(session=…)`"),
    "uvloop": Package(handed_over="the loop that runs"),
}


def over_roads(name: str) -> pytest.MarkDecorator:
    """Run a test over each road that the package of that name permits."""
    roads = PACKAGES[name].roads
    return pytest.mark.parametrize("road", [each for each in Road if each in roads], ids=lambda road: road.name.lower())


def load(module: str) -> Any:
    """Import what may say at import that it uses something deprecated; skip where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as exc:
            if exc.name != module.partition(".")[0]:
                raise
            return pytest.importorskip(module, reason="needs the extra compat")


class Given:
    """A server, and what a road gives to a package that makes requests of it; an async context manager.

    Over ``connector=`` only our resolver knows the name under which the server is reached.

    Args:
        road: The road.
        answer: What the server answers.
        certificate: Of the server, which then speaks TLS.
    """

    def __init__(
        self,
        road: Road,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] | None = None,
        certificate: CertificateFiles | None = None,
    ) -> None:
        self.recorder = PhaseRecorder()
        self.requests: list[web.BaseRequest] = []
        """Every request that arrived, in order."""
        self.road = road
        self._host = "service.test" if road is Road.CONNECTOR else "localhost"
        self._names = FakeNameServer()
        self._settings = Settings()
        self._answer = answer or _ok
        self.server_context: Any = None if certificate is None else server_context(certificate)
        self._runner = web.ServerRunner(web.Server(self._serve), shutdown_timeout=0.2)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        return await self._answer(request)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.server_context).start()
        if self.road is Road.CONNECTOR:
            self._names.start()
            self._names.set(self._host, "127.0.0.1")
            self._settings = Settings(dns=DNSSettings(nameservers=(self._names.address,)))
        elif self.road is Road.INSTRUMENT:
            instrument(hooks=[self.recorder])
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        uninstrument()
        self._names.stop()
        await self._runner.cleanup()
        if kind is None:
            self.recorder.check_invariants()

    def url(self, path: str = "/") -> str:
        """Return a URL with the server's name."""
        return self._url(self._host, path)

    def literal_url(self, path: str = "/") -> str:
        """Return a URL with the server's address, for those that resolve no name on this machine."""
        return self._url("127.0.0.1", path)

    def _url(self, host: str, path: str) -> str:
        scheme = "http" if self.server_context is None else "https"
        return f"{scheme}://{host}:{self._runner.addresses[0][1]}{path}"

    def session(self, **options: Any) -> aiohttp.ClientSession:
        """Return a session for a package that takes one."""
        match self.road:
            case Road.CONNECTOR:
                return create_session(self._settings, hooks=[self.recorder], **options)
            case Road.TRACE_CONFIGS:
                return aiohttp.ClientSession(trace_configs=[self.trace_config()], **options)
            case Road.INSTRUMENT:
                return aiohttp.ClientSession(**options)

    def options(self) -> dict[str, Any]:
        """Return what a package hands on to a session that it builds."""
        match self.road:
            case Road.CONNECTOR:
                return {"connector": self.connector(), "trace_configs": [self.trace_config()]}
            case Road.TRACE_CONFIGS:
                return {"trace_configs": [self.trace_config()]}
            case Road.INSTRUMENT:
                return {}

    def connector(self) -> aiohttp.TCPConnector:
        return create_connector(self._settings)

    def trace_config(self) -> aiohttp.TraceConfig:
        return create_trace_config(hooks=[self.recorder])


async def _ok(_: web.BaseRequest) -> web.Response:
    return web.json_response({"ok": True})

"""Beside tracers that wrap `ClientSession` and its connector, as ddtrace does with wrapt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from aiohttp_hardened import create_trace_config, instrument, instrument_session, uninstrument
from aiohttp_hardened.testing import HTTPServer, PhaseRecorder
from tests.compat._roads import LITERAL, REUSED, load

if TYPE_CHECKING:
    from collections.abc import Generator

wrapt = load("wrapt")


class ConnectorProxy(wrapt.ObjectProxy):  # type: ignore[misc]
    """Stands before a connector, and counts what it is asked for."""

    def __init__(self, connector: aiohttp.BaseConnector, calls: list[str]) -> None:
        super().__init__(connector)
        self._self_calls = calls

    async def connect(self, *args: Any, **options: Any) -> Any:
        self._self_calls.append("connect")
        return await self.__wrapped__.connect(*args, **options)


class Tracer:
    """Wraps the constructor and the request of every session, and proxies its connector."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self) -> None:
        wrapt.wrap_function_wrapper("aiohttp", "ClientSession.__init__", self._init)
        wrapt.wrap_function_wrapper("aiohttp", "ClientSession._request", self._request)

    def end(self) -> None:
        for name in ("__init__", "_request"):
            setattr(aiohttp.ClientSession, name, vars(aiohttp.ClientSession)[name].__wrapped__)

    def _init(self, wrapped: Any, session: Any, args: Any, options: Any) -> None:
        wrapped(*args, **options)
        session._connector = ConnectorProxy(session._connector, self.calls)

    async def _request(self, wrapped: Any, _: object, args: Any, options: Any) -> Any:
        self.calls.append("request")
        options["headers"] = {**(options.get("headers") or {}), "x-trace-id": "1"}
        return await wrapped(*args, **options)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Generator[None]:
    """Whoever wraps what, and unwraps it when, the class is aiohttp's in the end."""
    before = dict(vars(aiohttp.ClientSession))
    yield
    uninstrument()
    assert before == dict(vars(aiohttp.ClientSession))


async def ask(session: aiohttp.ClientSession, server: HTTPServer) -> None:
    async with session.get(server.url()) as response:
        await response.read()


@pytest.mark.parametrize("ours_first", [False, True])
@pytest.mark.parametrize("ours_leaves_first", [False, True])
async def test_both_tell(ours_first: bool, ours_leaves_first: bool) -> None:
    """Installed and removed in any order, each sees each request while it is there."""
    tracer, recorder = Tracer(), PhaseRecorder()
    if ours_first:
        instrument(hooks=[recorder])
        tracer.begin()
    else:
        tracer.begin()
        instrument(hooks=[recorder])
    async with HTTPServer() as server:
        async with aiohttp.ClientSession() as session:
            await ask(session, server)
            assert (LITERAL, ["request", "connect"]) == (recorder.phases(), tracer.calls)
            if ours_leaves_first:
                uninstrument()
                await ask(session, server)
                assert (LITERAL, ["request", "connect"] * 2) == (recorder.phases(), tracer.calls)
                assert type(session.connector.__wrapped__) is aiohttp.TCPConnector
                tracer.end()
            else:
                tracer.end()
                await ask(session, server)
                assert LITERAL + REUSED == recorder.phases()
                uninstrument()
        seen = list(recorder.phases()), list(tracer.calls)
        async with aiohttp.ClientSession() as session:
            await ask(session, server)
        assert seen == (recorder.phases(), tracer.calls)
    recorder.check_invariants()


@pytest.mark.parametrize("road", ["trace config", "instrument_session"])
async def test_a_connector_behind_a_proxy(road: str, caplog: pytest.LogCaptureFixture) -> None:
    """What we are shown is the tracer's proxy; the connector behind it is timed, and the proxy stays."""
    tracer, recorder = Tracer(), PhaseRecorder()
    tracer.begin()
    options = {"trace_configs": [create_trace_config(hooks=[recorder])]} if road == "trace config" else {}
    async with HTTPServer() as server, aiohttp.ClientSession(**options) as session:
        if road == "instrument_session":
            instrument_session(session, hooks=[recorder])
        await ask(session, server)
        assert (LITERAL, ["request", "connect"]) == (recorder.phases(), tracer.calls)
        assert type(session.connector) is ConnectorProxy
        uninstrument()
        if road == "instrument_session":
            assert type(session.connector.__wrapped__) is aiohttp.TCPConnector
    tracer.end()
    assert caplog.records == []
    recorder.check_invariants()

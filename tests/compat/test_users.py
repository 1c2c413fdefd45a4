"""Beside what users of aiohttp put into a session: TraceConfigs, middlewares, and classes of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from aiohttp_hardened import instrument, uninstrument
from aiohttp_hardened.telemetry import SpanHook
from aiohttp_hardened.testing import HTTPServer, PhaseRecorder
from tests.compat._roads import COLD, REUSED, Given, Road

EVERY = tuple(Road)
SIGNALS = [name for name in vars(aiohttp.TraceConfig) if name.startswith("on_")]


@pytest.mark.parametrize("road", EVERY)
async def test_a_trace_config_of_the_users(road: Road) -> None:
    """It gets every signal, its own context and the request's `trace_request_ctx`, as it would without us."""
    seen: list[tuple[str, Any]] = []
    theirs = aiohttp.TraceConfig()

    def note(name: str) -> Any:
        async def receive(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
            assert type(context) is SimpleNamespace
            seen.append((name, context.trace_request_ctx))

        return receive

    for name in SIGNALS:
        getattr(theirs, name).append(note(name))
    async with Given(road) as given:
        options = given.options()
        options["trace_configs"] = [theirs, *options.get("trace_configs", [])]
        async with aiohttp.ClientSession(**options) as session:
            for number in range(2):
                async with session.get(given.url(), trace_request_ctx={"number": number}) as response:
                    await response.read()
    first = [name for name, context in seen if context == {"number": 0}]
    second = [name for name, context in seen if context == {"number": 1}]
    assert [
        "on_request_start",
        "on_dns_cache_miss",
        "on_dns_resolvehost_start",
        "on_dns_resolvehost_end",
    ] == [name for name in first if name == "on_request_start" or "dns" in name]
    assert {"on_connection_create_start", "on_connection_create_end", "on_request_end"} <= set(first)
    assert "on_connection_reuseconn" in second
    assert COLD + REUSED == given.recorder.phases()


@pytest.mark.parametrize("context", [None, {}, {"url.template": "/items/{id}"}, {"url.template": 5}, object(), "text"])
async def test_any_trace_request_ctx(context: Any) -> None:
    """Whatever a caller passes there is the caller's; a template in it names the span."""
    exporter = InMemorySpanExporter()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(hooks=[SpanHook(tracer_provider=tracers)])
    try:
        async with (
            HTTPServer() as server,
            aiohttp.ClientSession() as session,
            session.get(server.url(), trace_request_ctx=context) as response,
        ):
            assert response.status == 200
    finally:
        uninstrument()
    (request,) = (each for each in exporter.get_finished_spans() if each.kind is SpanKind.CLIENT)
    templated = isinstance(context, dict) and context.get("url.template") == "/items/{id}"
    assert request.name == ("GET /items/{id}" if templated else "GET")


@pytest.mark.parametrize("road", EVERY)
async def test_a_middleware_that_retries(road: Road) -> None:
    """Each send is a request of its own with its resend count, on one connection."""
    failures = [503, 503]

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(status=failures.pop() if failures else 200)

    async def retry(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        while (response := await handler(request)).status == 503:
            response.release()
        return response

    async with (
        Given(road, answer) as given,
        given.session(middlewares=[retry]) as session,
        session.get(given.url()) as response,
    ):
        assert response.status == 200
    assert ["503", "503", None] == [each.error_type for each in given.recorder.requests()]
    assert [0, 1, 2] == [each.resend_count for each in given.recorder.requests()]
    assert [False, True, True] == [each.reused for each in given.recorder.requests()]


async def test_a_mocked_class() -> None:
    """`create_autospec` reads the instrumented class as it reads aiohttp's."""
    before = set(dir(create_autospec(aiohttp.ClientSession)))
    instrument(hooks=[PhaseRecorder()])
    try:
        assert set(dir(create_autospec(aiohttp.ClientSession))) - before <= {"_trace_configs"}
    finally:
        uninstrument()

"""Under aiofastnet, whose transports do their TLS without `wrap_bio`."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any

import pytest

from aiohttp_hardened import Phase, Settings, TLSSettings, create_session
from aiohttp_hardened.testing import PhaseRecorder, ThrowawayCA, TLSServer
from tests.compat._roads import COLD, LITERAL, REUSED, Given, Road, load

aiofastnet = load("aiofastnet")


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each loop make its connections through aiofastnet, as aiohttp's `speedups` will."""
    made = asyncio.new_event_loop()
    kind = type(made)
    made.close()

    async def create_connection(loop: Any, *args: Any, **options: Any) -> Any:
        return await aiofastnet.create_connection(loop, *args, **options)

    async def start_tls(loop: Any, *args: Any, **options: Any) -> Any:
        return await aiofastnet.start_tls(loop, *args, **options)

    monkeypatch.setattr(kind, "create_connection", create_connection, raising=False)
    monkeypatch.setattr(kind, "start_tls", start_tls, raising=False)


@pytest.mark.loops("asyncio")
@pytest.mark.parametrize("road", [Road.TRACE_CONFIGS, Road.INSTRUMENT])
async def test_a_foreign_context_is_not_split(road: Road, throwaway_ca: ThrowawayCA) -> None:
    """There is a TCP connect that ends where it ended, no handshake, and a set-up that holds both."""
    context = throwaway_ca.client_context()
    hellos: list[int] = []
    async with Given(road, certificate=throwaway_ca.issue("localhost")) as given, given.session() as session:
        given.server_context.sni_callback = lambda *_: hellos.append(time.time_ns())
        for _ in range(2):
            async with session.get(given.url(), ssl=context) as response:
                await response.read()
    assert COLD + REUSED == given.recorder.phases()
    assert given.recorder.only(Phase.TCP).end_ns <= hellos[0] <= given.recorder.only(Phase.SETUP).end_ns
    assert context.sslobject_class is ssl.SSLObject


@pytest.mark.loops("asyncio")
async def test_ours_is_split(throwaway_ca: ThrowawayCA) -> None:
    """A shared context sends it through `wrap_bio`, so the handshake is timed."""
    recorder = PhaseRecorder()
    settings = Settings(tls=TLSSettings(trust="none", ca_files=(throwaway_ca.ca_file,)))
    async with (
        TLSServer(throwaway_ca.issue("127.0.0.1")) as server,
        create_session(settings, hooks=[recorder]) as session,
        session.get(server.url()) as response,
    ):
        await response.read()
    assert [Phase.TCP, Phase.TLS, *LITERAL[1:]] == recorder.phases()
    recorder.check_invariants()

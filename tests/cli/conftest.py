"""Servers on a loop of their own, for ``main()`` has one too, and a terminal of 80 columns."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened._cli import main
from tests.cli._types import Probe, ProbeJSON, Running, T

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def _on_a_thread(peer: AbstractAsyncContextManager[T]) -> Iterator[T]:
    entered: list[T] = []
    ready = threading.Event()
    over = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_ignore_refused_handshakes)
        loops.append(loop)
        async with peer as given:
            entered.append(given)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield entered[0]
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join(10)


def _ignore_refused_handshakes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), (ssl.SSLError, ConnectionError)):
        loop.default_exception_handler(context)


@pytest.fixture
def running() -> Iterator[Running]:
    """Start a peer, an async context manager, for the rest of the test; return what it gives."""
    with ExitStack() as stack:
        yield lambda peer: stack.enter_context(_on_a_thread(peer))


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw for a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def probe(capsys: pytest.CaptureFixture[str]) -> Probe:
    """Probe; return the exit status and what was printed, which is 80 columns wide where it is drawn."""

    def run(*arguments: str) -> tuple[int, str]:
        status = main(["probe", *arguments])
        return status, capsys.readouterr().out

    return run


@pytest.fixture
def probe_json(probe: Probe) -> ProbeJSON:
    """Probe with ``--json``; return the exit status and the document."""

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        status, shown = probe("--json", *arguments)
        return status, json.loads(shown)

    return run

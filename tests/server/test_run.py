"""`run_app` in a process of its own, as services run it: renewals by SIGHUP, a clean end at SIGTERM."""

from __future__ import annotations

import asyncio
import inspect
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from aiohttp_hardened import Settings, TLSSettings, create_connector, create_session, reload_tls
from aiohttp_hardened.exceptions import SettingsError
from aiohttp_hardened.server import create_server_ssl_context, reload_on_sighup, run_app
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.tls import _reload
from tests.server._served import Mounted, application, serial_shown, serving

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from aiohttp_hardened.testing import ThrowawayCA
    from tests.server._served import Address

SERVICE = """
import asyncio, logging, sys
from aiohttp import web
from aiohttp_hardened.server import run_app

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
loop_name, certfile, keyfile = sys.argv[1:]
if loop_name == "uvloop":
    import uvloop
    loop = uvloop.new_event_loop()
else:
    loop = asyncio.new_event_loop()

async def echo(request):
    return web.Response(text=await request.text())

app = web.Application()
app.router.add_post("/", echo)
run_app(app, host="127.0.0.1", port=0, certfile=certfile, keyfile=keyfile, loop=loop, access_log=None,
        print=lambda *args: print(*args, flush=True))
print("ended", flush=True)
"""


@pytest.fixture
def mounted(tmp_path: Path, throwaway_ca: ThrowawayCA) -> Mounted:
    return Mounted(tmp_path, throwaway_ca.issue("x.test", "127.0.0.1"))


class Service:
    """A process that runs `SERVICE`.

    Args:
        process: It.
        address: Where it listens.
    """

    def __init__(self, process: subprocess.Popen[str], address: Address) -> None:
        self.address = address
        self._process = process
        self._log: list[str] = []
        self._news = threading.Condition()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._news:
                self._log.append(line)
                self._news.notify_all()

    def hang_up(self, said: str) -> None:
        """Send SIGHUP, and wait for what comes of it in the log."""
        self._process.send_signal(signal.SIGHUP)
        with self._news:
            assert self._news.wait_for(lambda: any(said in line for line in self._log), 30), self._log
            self._log.clear()

    def end(self) -> tuple[int, str]:
        """Send SIGTERM; return the status and the last line of the output."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.stdout is not None
        output = self._process.stdout.read()
        status = self._process.wait(30)
        self._reading.join()
        return status, output.strip().splitlines()[-1]


@contextmanager
def service(loop_name: str, mounted: Mounted) -> Generator[Service]:
    command = [sys.executable, "-c", SERVICE, loop_name, str(mounted.cert), str(mounted.key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"https://([\d.]+):(\d+)", process.stdout.readline())
            assert found is not None
            yield Service(process, (found[1], int(found[2])))
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="it has no SIGHUP")
async def test_a_service_is_renewed_and_ends(mounted: Mounted, throwaway_ca: ThrowawayCA, loop_name: str) -> None:
    """300 requests at once are served; a wrong key is in the log, the right pair shows; SIGTERM means status 0."""
    old, new = throwaway_ca.issue("x.test", "127.0.0.1"), throwaway_ca.issue("x.test", "127.0.0.1")
    mounted.write(old)
    trust = throwaway_ca.client_context()
    settings = Settings(tls=TLSSettings(trust="none", ca_files=(throwaway_ca.ca_file,)))
    with service(loop_name, mounted) as running:
        url = "https://{}:{}/".format(*running.address)
        connector = create_connector(settings, limit=0)
        async with create_session(settings, hooks=(), connector=connector) as session:

            async def ask(number: int) -> str:
                async with session.post(url, data=str(number)) as response:
                    return await response.text()

            assert [str(number) for number in range(300)] == await asyncio.gather(*map(ask, range(300)))
        mounted.write(new, key=old)
        await asyncio.to_thread(running.hang_up, "KEY_VALUES_MISMATCH")
        for name in ("x.test", None):
            assert old.serial_number == await serial_shown(running.address, trust, name)
        mounted.write(new)
        await asyncio.to_thread(running.hang_up, "applied, generation 2")
        for name in ("x.test", None):
            assert new.serial_number == await serial_shown(running.address, trust, name)
        assert (0, "ended") == await asyncio.to_thread(running.end)


def test_every_keyword_of_aiohttps_is_taken() -> None:
    """With the same default, but for the backlog."""
    theirs, ours = (inspect.signature(function).parameters for function in (web.run_app, run_app))
    same = {name: parameter.default for name, parameter in theirs.items() if name != "backlog"}
    assert same == {name: ours[name].default for name in same}
    assert (128, 1024) == (theirs["backlog"].default, ours["backlog"].default)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keyfile": "tls.key"}, "server.keyfile is set but server.certfile is not"),
        ({"reload_interval": 5.0}, "server.reload_interval is set but server.certfile is not"),
        ({"backlog": -1}, "server.backlog is -1"),
        ({"ssl_handshake_timeout": -1.0}, "server.ssl_handshake_timeout is -1.0"),
        ({"certfile": "/nowhere.pem"}, "server.certfile names '/nowhere.pem', which is not a file"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_runs(options: dict[str, Any], said: str) -> None:
    """The error names the field, what was given and what is allowed."""
    with pytest.raises(SettingsError) as caught:
        run_app(application(), **options)
    assert said in str(caught.value)


def test_a_context_and_files_are_one_too_many(mounted: Mounted) -> None:
    """Which of them is meant is not guessed."""
    with pytest.raises(SettingsError, match="both set"):
        run_app(application(), ssl_context=mounted.context(), certfile=mounted.cert)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no SIGHUP")
async def test_an_app_of_another_runner_is_renewed(mounted: Mounted, throwaway_ca: ThrowawayCA) -> None:
    """``cleanup_ctx`` reloads at SIGHUP while the app runs, and leaves the signal as it was."""
    context = mounted.context()
    before = signal.getsignal(signal.SIGHUP)
    app = application()
    app.cleanup_ctx.append(reload_on_sighup(context))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        new = throwaway_ca.issue("x.test")
        mounted.write(new)
        signal.raise_signal(signal.SIGHUP)
        async with asyncio.timeout(30):
            trust = throwaway_ca.client_context()
            while await serial_shown(runner.addresses[0], trust) != new.serial_number:  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0.01)
    finally:
        await runner.cleanup()
    assert before is signal.getsignal(signal.SIGHUP)


def test_only_contexts_of_ours_are_renewed(throwaway_ca: ThrowawayCA) -> None:
    """The error comes when the function is made, not at the first SIGHUP."""
    with pytest.raises(SettingsError, match="create_server_ssl_context"):
        reload_on_sighup(throwaway_ca.client_context())


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_thousand_reloads_under_load(
    mounted: Mounted, throwaway_ca: ThrowawayCA, monkeypatch: pytest.MonkeyPatch, loop_name: str
) -> None:
    """Every tenth pair is broken, new connections come all the time: no handshake fails, no context is left."""
    count = 1000 if loop_name == "asyncio" else 200
    monkeypatch.setattr(_reload, "_SECONDS_BETWEEN", 0.0)
    pairs = [throwaway_ca.issue("x.test", "127.0.0.1") for _ in range(2)]
    mounted.write(pairs[0])
    context = create_server_ssl_context(mounted.cert, mounted.key)
    contexts = figures.ssl_contexts
    over = asyncio.Event()
    served = 0
    outcomes: dict[str, int] = {"applied": 0, "rejected": 0}
    trust = throwaway_ca.client_context()
    failed: list[str | None] = []
    async with serving(context, hooks=[lambda record: failed.append(record.error_type)]) as (host, port):

        async def ask_on() -> None:
            nonlocal served
            connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
            async with aiohttp.ClientSession(connector=connector) as session:
                while not over.is_set():
                    async with session.get(f"https://{host}:{port}/") as response:
                        assert 200 == response.status
                    served += 1

        async with asyncio.TaskGroup() as asking:
            for _ in range(8):
                asking.create_task(ask_on())
            for number in range(1, count + 1):
                new, old = pairs if outcomes["applied"] % 2 else reversed(pairs)
                mounted.write(new, old if number % 10 == 0 else None)
                outcomes[(await asyncio.to_thread(reload_tls, context)).outcome] += 1
            over.set()
    assert {"applied": count * 0.9, "rejected": count * 0.1} == outcomes
    assert served > 100
    assert {None} == set(failed)
    assert figures.ssl_contexts <= contexts

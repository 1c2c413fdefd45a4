from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.compat._roads import Road, load, over_roads

load("pytest_aiohttp")

SUITE = """
from aiohttp import web

from aiohttp_hardened import create_connector, create_trace_config, instrument, uninstrument
from aiohttp_hardened.testing import PhaseRecorder


async def hello(request):
    return web.Response(text="hello")


async def test_a_client_is_told_of(aiohttp_client):
    recorder = PhaseRecorder()
    app = web.Application()
    app.router.add_get("/", hello)
    options = {}
    if "{road}" == "instrument()":
        instrument(hooks=[recorder])
    else:
        options["trace_configs"] = [create_trace_config(hooks=[recorder])]
    if "{road}" == "connector=":
        options["connector"] = create_connector()
    client = await aiohttp_client(app, **options)
    response = await client.get("/")
    assert await response.text() == "hello"
    assert ["tcp", "connection setup", "request", "body"] == recorder.phases()
    recorder.check_invariants()
    uninstrument()
"""


@over_roads("pytest-aiohttp")
def test_a_suite_of_its_users(road: Road, tmp_path: Path) -> None:
    """A test with its `aiohttp_client` passes with warnings as errors, and sees each phase."""
    (tmp_path / "test_app.py").write_text(SUITE.replace("{road}", road), "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    command += ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", "--rootdir=."]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert "1 passed" in result.stdout, result.stdout + result.stderr

"""`opentelemetry-instrument python app.py`, and forked workers: in processes of their own, as users run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from aiohttp_hardened.testing import ThrowawayCA
from tests.compat._roads import load

load("opentelemetry.distro")
load("opentelemetry.instrumentation.aiohttp_client")

APP: Final = """
import asyncio, ssl, sys

import aiohttp
from aiohttp import web

async def hello(request):
    return web.json_response(dict(request.headers))

async def main(cert, key, ca):
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(cert, key)
    runner = web.ServerRunner(web.Server(hello))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=served).start()
    url = f"https://localhost:{runner.addresses[0][1]}/"
    async with aiohttp.ClientSession() as session:
        async with session.get(url, ssl=ssl.create_default_context(cafile=ca)) as response:
            assert "traceparent" in {name.lower() for name in await response.json()}
    await runner.cleanup()

asyncio.run(main(*sys.argv[1:]))
"""
"""An app that knows nothing of us."""

FORKED: Final = """
import asyncio, json, os, sys

import aiohttp
from aiohttp import web

from aiohttp_hardened import instrument
from aiohttp_hardened.testing import PhaseRecorder

async def hello(request):
    return web.Response(text="hello")

async def ask():
    runner = web.ServerRunner(web.Server(hello))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://localhost:{runner.addresses[0][1]}/") as response:
            await response.read()
    await runner.cleanup()
    recorder.check_invariants()
    return recorder.phases()

recorder = PhaseRecorder()
instrument(hooks=[recorder])
if "used" in sys.argv:
    asyncio.run(ask())
    recorder.clear()
told, worker = os.pipe()
if os.fork() == 0:
    os.write(worker, json.dumps(asyncio.run(ask())).encode())
    os._exit(0)
os.close(worker)
print(os.read(told, 65536).decode())
assert os.wait()[1] == 0
"""
"""A master that instruments and forks, as `gunicorn --preload` does."""


def run_app(ca: ThrowawayCA, directory: Path, **variables: str) -> list[dict[str, Any]]:
    """Run the app under `opentelemetry-instrument`; return the spans that it printed."""
    certificate = ca.issue("localhost")
    app = directory / "app.py"
    app.write_text(APP, "utf-8")
    command = [Path(sys.executable).with_name("opentelemetry-instrument"), sys.executable, app]
    command += [certificate.cert_file, certificate.key_file, ca.ca_file]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment |= {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment | variables, timeout=60, check=False, cwd=directory
    )
    assert result.returncode == 0, result.stderr
    decoder, text, spans = json.JSONDecoder(), result.stdout.lstrip(), []
    while text:
        span, end = decoder.raw_decode(text)
        spans.append(span)
        text = text[end:].lstrip()
    return spans


PHASES: Final = {"DNS lookup", "TCP connect", "TLS handshake", "connection setup", "response body"}


@pytest.mark.parametrize("disabled", ["", "aiohttp-client", "aiohttp_hardened"])
def test_opentelemetry_instrument(disabled: str, throwaway_ca: ThrowawayCA, tmp_path: Path) -> None:
    """One CLIENT span, contrib's unless it is disabled, over the phases, in one trace; disabled, we tell nothing."""
    spans = run_app(throwaway_ca, tmp_path, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=disabled)
    (request,) = (each for each in spans if each["kind"] == "SpanKind.CLIENT")
    assert ("http.request.method" in request["attributes"]) is (disabled == "aiohttp-client")
    phases = {each["name"]: each for each in spans if each is not request}
    assert (set() if disabled == "aiohttp_hardened" else PHASES) == set(phases)
    for name, span in phases.items():
        inside = phases["connection setup"] if name in {"DNS lookup", "TCP connect", "TLS handshake"} else request
        assert inside["context"]["span_id"] == span["parent_id"]
        assert request["context"]["trace_id"] == span["context"]["trace_id"]


@pytest.mark.parametrize("master", ["unused", "used"])
def test_a_forked_worker(master: str) -> None:
    """It tells of its requests, whether its master made some before the fork or not."""
    result = subprocess.run(
        [sys.executable, "-c", FORKED, master], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert ["dns", "tcp", "connection setup", "request", "body"] == json.loads(result.stdout)

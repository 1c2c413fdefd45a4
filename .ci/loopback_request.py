"""Make one request with the installed wheel and nothing else: no extra, no source tree."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

import aiohttp_hardened

if TYPE_CHECKING:
    from aiohttp_hardened.timing import PhaseRecord


async def answer(_: web.Request) -> web.Response:
    return web.Response(text="hello")


async def main() -> None:
    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    records: list[PhaseRecord] = []
    try:
        async with (
            aiohttp_hardened.create_session(hooks=[records.append]) as session,
            session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/") as response,
        ):
            assert await response.text() == "hello"
    finally:
        await runner.cleanup()
    phases = [record.phase.value for record in records]
    assert phases == ["tcp", "connection setup", "request", "body"], phases
    print(f"aiohttp-hardened {version('aiohttp-hardened')} (aiohttp {version('aiohttp')}): {', '.join(phases)}")


assert "site-packages" in Path(aiohttp_hardened.__file__).parts, aiohttp_hardened.__file__
for extra in ("rich", "trustme", "pytest", "uvloop"):
    assert find_spec(extra) is None, f"{extra} is installed: this is not a user's environment"
asyncio.run(main())

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened import Phase
from aiohttp_hardened.testing import ThrowawayCA
from tests.compat._roads import REUSED, Given, Road, load, over_roads

if TYPE_CHECKING:
    from collections.abc import Generator

aiohttp_socks = load("aiohttp_socks")
load("pproxy")

SERVE = """
import asyncio, pproxy

async def main():
    handler = await pproxy.Server("socks5://127.0.0.1:0").start_server({"rserver": [pproxy.Connection("direct")]})
    print(handler.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def socks_proxy() -> Generator[str]:
    """Give the URL of a real SOCKS proxy."""
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield f"socks5://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


@over_roads("aiohttp-socks")
async def test_what_its_connector_does_is_one_set_up(road: Road, socks_proxy: str) -> None:
    """It connects in a way of its own, so nothing in its set-up is called a TCP connect or a lookup."""
    async with Given(road) as given:
        connector = aiohttp_socks.ProxyConnector.from_url(socks_proxy)
        async with given.session(connector=connector) as session:
            for _ in range(2):
                async with session.get(given.literal_url()) as response:
                    await response.read()
        assert isinstance(connector, aiohttp_socks.ProxyConnector)
    assert [Phase.SETUP, *REUSED, *REUSED] == given.recorder.phases()
    assert [False, True] == [each.reused for each in given.recorder.requests()]


@over_roads("aiohttp-socks")
async def test_tls_through_it(road: Road, socks_proxy: str, throwaway_ca: ThrowawayCA) -> None:
    """The handshake behind the proxy is with a context that we see, and is told of."""
    context = throwaway_ca.client_context()
    async with (
        Given(road, certificate=throwaway_ca.issue("127.0.0.1")) as given,
        given.session(connector=aiohttp_socks.ProxyConnector.from_url(socks_proxy)) as session,
        session.get(given.literal_url(), ssl=context) as response,
    ):
        await response.read()
    assert [Phase.TLS, Phase.SETUP, *REUSED] == given.recorder.phases()


@over_roads("aiohttp-socks")
async def test_a_proxy_that_is_not_there(road: Road) -> None:
    """Its own exception reaches the caller, and the set-up has failed."""
    async with Given(road) as given:
        options: dict[str, Any] = {"connector": aiohttp_socks.ProxyConnector.from_url("socks5://127.0.0.1:1")}
        async with given.session(**options) as session:
            with pytest.raises(aiohttp_socks.ProxyConnectionError):
                await session.get(given.literal_url())
        assert given.recorder.only(Phase.SETUP).error_type is not None
    assert [Phase.SETUP, Phase.REQUEST] == given.recorder.phases()

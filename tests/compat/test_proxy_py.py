from __future__ import annotations

import pytest

from aiohttp_hardened import Phase
from aiohttp_hardened.testing import ThrowawayCA
from tests.compat._roads import LITERAL, Given, Road, load, over_roads

load("proxy")

TUNNELLED = [Phase.TCP, Phase.TUNNEL, Phase.TLS, Phase.SETUP, Phase.REQUEST, Phase.BODY]
TUNNELLED_TWICE = [Phase.TCP, Phase.TLS, Phase.TUNNEL, Phase.TLS, Phase.SETUP, Phase.REQUEST, Phase.BODY]


@over_roads("proxy.py")
async def test_http(road: Road, http_proxy: str) -> None:
    """A plain request to the proxy has no tunnel."""
    async with (
        Given(road) as given,
        given.session() as session,
        session.get(given.literal_url(), proxy=http_proxy) as response,
    ):
        assert {"ok": True} == await response.json()
    assert LITERAL == given.recorder.phases()


@pytest.mark.parametrize(("scheme", "phases"), [("http", TUNNELLED), ("https", TUNNELLED_TWICE)])
@over_roads("proxy.py")
async def test_https(
    road: Road, scheme: str, phases: list[Phase], http_proxy: str, https_proxy: str, throwaway_ca: ThrowawayCA
) -> None:
    """The tunnel is a phase; an https proxy has a handshake of its own before it."""
    context = throwaway_ca.client_context()
    proxy = http_proxy if scheme == "http" else https_proxy
    async with (
        Given(road, certificate=throwaway_ca.issue("127.0.0.1")) as given,
        given.session() as session,
        session.get(given.literal_url(), proxy=proxy, ssl=context) as response,
    ):
        assert {"ok": True} == await response.json()
    assert phases == given.recorder.phases()

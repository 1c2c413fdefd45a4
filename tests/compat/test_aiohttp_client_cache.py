from __future__ import annotations

from tests.compat._roads import COLD, Given, Road, load, over_roads

aiohttp_client_cache = load("aiohttp_client_cache")


@over_roads("aiohttp-client-cache")
async def test_only_what_is_sent_is_told(road: Road) -> None:
    """The first answer comes from the server and is told of, the second from the cache and is not."""
    async with Given(road) as given, aiohttp_client_cache.CachedSession(**given.options()) as session:
        for from_cache in (False, True):
            response = await session.get(given.url())
            assert {"ok": True} == await response.json()
            assert response.from_cache is from_cache
    assert len(given.requests) == 1
    assert COLD == given.recorder.phases()

from __future__ import annotations

import pytest

from aiohttp_hardened.testing import ThrowawayCA
from tests.compat._roads import COLD_TLS, REUSED, Given, Road, load, over_roads

load("uvloop")


@pytest.mark.loops("uvloop")
@over_roads("uvloop")
async def test_all_phases_are_split(road: Road, throwaway_ca: ThrowawayCA) -> None:
    """Its own transports and TLS are timed as asyncio's are."""
    context = throwaway_ca.client_context()
    async with (
        Given(road, certificate=throwaway_ca.issue("localhost", "service.test")) as given,
        given.session() as session,
    ):
        for _ in range(2):
            async with session.get(given.url(), ssl=context) as response:
                await response.read()
    assert COLD_TLS + REUSED == given.recorder.phases()

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest

from tests.compat._roads import COLD, Given, Road, load, over_roads

aioresponses = load("aioresponses")


class MockedResponse(aiohttp.ClientResponse):
    """What its users need on aiohttp 3.14: https://github.com/pnuckowski/aioresponses/issues/289."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, stream_writer=Mock(output_size=0), **options)


@over_roads("aioresponses")
async def test_what_is_real_is_told(road: Road) -> None:
    """A mocked answer and a mocked failure reach the caller and are told by nobody; the request beside them is."""
    async with Given(road) as given:
        with aioresponses.aioresponses(passthrough=[given.url()]) as mocked:
            async with given.session() as session:
                mocked.get("http://mocked.test/", payload={"mocked": True}, response_class=MockedResponse)
                mocked.get("http://mocked.test/", exception=aiohttp.ServerDisconnectedError())
                async with session.get("http://mocked.test/") as response:
                    assert {"mocked": True} == await response.json()
                async with session.get(given.url()) as response:
                    assert {"ok": True} == await response.json()
                with pytest.raises(aiohttp.ServerDisconnectedError):
                    await session.get("http://mocked.test/")
    assert len(given.requests) == 1
    assert COLD == given.recorder.phases()

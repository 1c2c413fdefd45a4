from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from tests.compat._roads import COLD, REUSED, Given, Road, load, over_roads

discord_http = load("discord.http")

JSON = {"Content-Type": "application/json"}
"""To the letter: it takes nothing else for JSON."""


async def answer(request: web.BaseRequest) -> web.Response:
    if request.path.endswith("/users/@me"):
        return web.Response(body=b'{"id": "1", "username": "bot"}', headers=JSON)
    return web.Response(body=b'{"url": "wss://gateway.test", "shards": 1}', headers=JSON)


@over_roads("discord.py")
async def test_its_http_client_is_told_of(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging in and another call share a connection; `http_trace=` and `connector=` are its own doors."""
    async with Given(road, answer) as given:
        monkeypatch.setattr(discord_http.Route, "BASE", given.url("/api/v10"))
        client = discord_http.HTTPClient(
            asyncio.get_running_loop(),
            given.connector() if road is Road.CONNECTOR else None,
            http_trace=None if road is Road.INSTRUMENT else given.trace_config(),
        )
        try:
            assert (await client.static_login("token"))["username"] == "bot"
            await client.request(discord_http.Route("GET", "/gateway/bot"))
        finally:
            await client.close()
    assert ["/api/v10/users/@me", "/api/v10/gateway/bot"] == [each.path for each in given.requests]
    assert COLD + REUSED == given.recorder.phases()

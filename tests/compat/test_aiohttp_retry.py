from __future__ import annotations

from aiohttp import web

from tests.compat._roads import COLD, REUSED, Given, Road, load, over_roads

aiohttp_retry = load("aiohttp_retry")


@over_roads("aiohttp-retry")
async def test_every_try_is_told(road: Road) -> None:
    """Two failures and a success are three requests on one connection, each with its outcome."""
    failures = [503, 502]

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(status=failures.pop(0)) if failures else web.json_response({"ok": True})

    options = aiohttp_retry.ExponentialRetry(attempts=3, start_timeout=0.001)
    async with Given(road, answer) as given:
        client = aiohttp_retry.RetryClient(client_session=given.session(), retry_options=options)
        async with client, client.get(given.url()) as response:
            assert {"ok": True} == await response.json()
    assert COLD + REUSED * 2 == given.recorder.phases()
    assert ["503", "502", None] == [each.error_type for each in given.recorder.requests()]


@over_roads("aiohttp-retry")
async def test_its_own_session(road: Road) -> None:
    """What it hands on to the session that it builds is enough."""
    async with (
        Given(road) as given,
        aiohttp_retry.RetryClient(**given.options()) as client,
        client.get(given.url()) as response,
    ):
        await response.read()
    assert COLD == given.recorder.phases()

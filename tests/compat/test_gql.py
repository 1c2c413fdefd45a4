from __future__ import annotations

from aiohttp import web

from tests.compat._roads import COLD, Given, Road, load, over_roads

gql = load("gql")
gql_aiohttp = load("gql.transport.aiohttp")


async def answer(_: web.BaseRequest) -> web.Response:
    return web.json_response({"data": {"hello": "world"}})


@over_roads("gql")
async def test_a_query_is_told(road: Road) -> None:
    """`client_session_args` leads to the session that the transport builds."""
    async with Given(road, answer) as given:
        transport = gql_aiohttp.AIOHTTPTransport(url=given.url("/graphql"), client_session_args=given.options())
        async with gql.Client(transport=transport) as session:
            assert {"hello": "world"} == await session.execute(gql.gql("{ hello }"))
    assert ["/graphql"] == [each.path for each in given.requests]
    assert COLD == given.recorder.phases()

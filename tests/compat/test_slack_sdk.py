from __future__ import annotations

from tests.compat._roads import COLD, Given, Road, load, over_roads

slack = load("slack_sdk.web.async_client")


@over_roads("slack-sdk")
async def test_a_call_is_told(road: Road) -> None:
    """With a session of the caller's, and with one of its own per call."""
    async with Given(road) as given:
        session = None if road is Road.INSTRUMENT else given.session()
        client = slack.AsyncWebClient(token="xoxb-none", base_url=given.url("/api/"), session=session)
        answer = await client.chat_postMessage(channel="C1", text="hello")
        assert answer["ok"]
        if session is not None:
            await session.close()
    assert ["/api/chat.postMessage"] == [each.path for each in given.requests]
    assert COLD == given.recorder.phases()

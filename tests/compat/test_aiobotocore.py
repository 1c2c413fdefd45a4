from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from aiohttp_hardened import Phase
from aiohttp_hardened.testing import ThrowawayCA
from tests.compat._roads import COLD, COLD_TLS, REUSED, Given, Road, load, over_roads

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

aiobotocore_session = load("aiobotocore.session")

IDENTITY = """
<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>arn:aws:iam::123456789012:user/nobody</Arn><UserId>NOBODY</UserId><Account>123456789012</Account>
</GetCallerIdentityResult><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></GetCallerIdentityResponse>
"""


@pytest.fixture(autouse=True)
def no_configuration_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file, variable or metadata service have a say."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


async def answer(request: web.BaseRequest) -> web.Response:
    if request.method == "POST":
        return web.Response(text=IDENTITY, content_type="text/xml")
    return web.Response(body=b"an object")


def client(name: str, url: str, **options: Any) -> AbstractAsyncContextManager[Any]:
    return aiobotocore_session.get_session().create_client(
        name,
        region_name="eu-central-1",
        endpoint_url=url,
        aws_access_key_id="none",
        aws_secret_access_key="none",
        **options,
    )


@over_roads("aiobotocore")
async def test_calls_are_told(road: Road) -> None:
    """STS answers twice, on one connection of aiobotocore's own connector."""
    async with Given(road, answer) as given, client("sts", given.url()) as sts:
        for _ in range(2):
            assert (await sts.get_caller_identity())["Account"] == "123456789012"
    assert COLD + REUSED == given.recorder.phases()


@over_roads("aiobotocore")
async def test_an_object_over_tls(road: Road, throwaway_ca: ThrowawayCA) -> None:
    """S3 with a bundle of the user's: the handshake with aiobotocore's own context is told of, and the body."""
    path_style = load("aiobotocore.config").AioConfig(s3={"addressing_style": "path"})
    async with (
        Given(road, answer, throwaway_ca.issue("localhost")) as given,
        client("s3", given.url(), verify=str(throwaway_ca.ca_file), config=path_style) as s3,
    ):
        found = await s3.get_object(Bucket="bucket", Key="key")
        assert await found["Body"].read() == b"an object"
    assert COLD_TLS == given.recorder.phases()
    assert given.recorder.only(Phase.BODY).attributes["aiohttp.client.body.outcome"] == "complete"

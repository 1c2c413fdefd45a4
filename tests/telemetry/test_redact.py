from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import Span, SpanProcessor
from yarl import URL

from aiohttp_hardened import DEFAULTS, TelemetrySettings
from aiohttp_hardened.telemetry._redact import redact_url
from tests.telemetry._driving import Driven, driven

KEEP = TelemetrySettings(keep_query=True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://x.test/", "http://x.test/"),
        ("http://x.test:8080/a/b", "http://x.test:8080/a/b"),
        ("http://x.test/#fragment", "http://x.test/"),
        ("http://user:secret@x.test/", "http://REDACTED:REDACTED@x.test/"),
        ("http://user@x.test:81/a@b", "http://REDACTED:REDACTED@x.test:81/a@b"),
        ("http://x.test/a@b", "http://x.test/a@b"),
        ("http://x.test/?a=1&b=2", "http://x.test/?a=REDACTED&b=REDACTED"),
        ("http://x.test/?a=1=2", "http://x.test/?a=REDACTED"),
        ("http://x.test/?a=", "http://x.test/?a=REDACTED"),
        ("http://x.test/?secret", "http://x.test/?REDACTED"),
        ("http://x.test/?a=1&&b", "http://x.test/?a=REDACTED&&REDACTED"),
        ("http://x.test/?a=u@v#w?x=y", "http://x.test/?a=REDACTED"),
        ("http://u:p@[::1]:80/?q=%20#f", "http://REDACTED:REDACTED@[::1]:80/?q=REDACTED"),
        ("/relative?token=secret#top", "/relative?token=REDACTED"),
        ("//user:secret@x.test/", "//REDACTED:REDACTED@x.test/"),
    ],
)
def test_values_are_kept_back(url: str, shown: str) -> None:
    """User info, query values and the fragment are not shown; keys and path are."""
    assert redact_url(url, DEFAULTS.telemetry) == shown


@pytest.mark.parametrize("key", DEFAULTS.telemetry.sensitive_query_keys)
def test_sensitive_keys_are_kept_back_from_a_kept_query(key: str) -> None:
    """Each of the convention's seven keys hides its value even when the query is kept."""
    assert redact_url(f"http://x.test/?a=1&{key}=s%2Fecret&b=2", KEEP) == f"http://x.test/?a=1&{key}=REDACTED&b=2"


def test_an_encoded_key_is_as_sensitive() -> None:
    """A key is compared as the server reads it."""
    assert redact_url("http://x.test/?%73ig=secret", KEEP) == "http://x.test/?%73ig=REDACTED"


def test_a_kept_query_is_not_encoded_again() -> None:
    """What is kept is what was sent, to the letter."""
    url = "http://x.test/?a=%7E+%2b;x&b=%zz&c=ä&&d"
    assert redact_url(url, KEEP) == url


class Seen(SpanProcessor):
    """Keep what a span shows when it starts and when it ends."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self.texts.append(span.to_json())

    def on_end(self, span: Any) -> None:
        self.texts.append(span.to_json())


@pytest.mark.parametrize("keep_query", [False, True])
def test_no_secret_reaches_a_processor(keep_query: bool) -> None:
    """A secret in a URL, an exception or a location is in no exported text, from a span's start on."""
    with driven(TelemetrySettings(keep_query=keep_query)) as hooked:
        seen = Seen()
        hooked.tracers.add_span_processor(seen)
        url = "http://user:PASSWORD@x.test/?X-Amz-Signature=SECRET#FRAGMENT"
        fails = hooked.begin(URL(url))
        fails.start_setup()
        fails.connect_failed(OSError(f"cannot connect to {url} through http://user:PASSWORD@proxy.test"))
        hooked.get(url)
    exported = "".join(seen.texts)
    assert "url.full" in exported
    for secret in ("PASSWORD", "SECRET", "FRAGMENT", "user:"):
        assert secret not in exported


def test_no_exception_event_is_written(hooked: Driven) -> None:
    """What an exception says stays with the exception."""
    attempt = hooked.begin()
    attempt.connect_failed(OSError("secret"))
    span = hooked.span("GET")
    assert span.events == ()
    assert span.attributes is not None
    assert "secret" not in str(dict(span.attributes))

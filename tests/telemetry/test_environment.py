from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict

from aiohttp_hardened import TelemetrySettings
from aiohttp_hardened.telemetry import _environment
from aiohttp_hardened.telemetry._environment import KNOWN_METHODS, read_environment
from tests.telemetry._driving import driven

REQUEST = "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_CLIENT_REQUEST"
RESPONSE = "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_CLIENT_RESPONSE"
SANITIZE = "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_SANITIZE_FIELDS"


def captured(settings: TelemetrySettings | None = None, **headers: Any) -> dict[str, Any]:
    """Return the header attributes of one request."""
    with driven(settings or TelemetrySettings()) as hooked:
        attempt = hooked.begin(headers=headers.get("sent"))
        hooked.answer(attempt, headers=headers.get("got"))
        attributes = dict(hooked.span("GET").attributes or {})
    return {name: value for name, value in attributes.items() if ".header." in name}


def test_no_header_is_captured_unless_asked_for() -> None:
    """Headers may hold secrets."""
    assert captured(sent={"X-Req": "1"}, got={"X-Res": "2"}) == {}


def test_listed_headers_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are regular expressions in any case; dashes stay; each value is listed."""
    monkeypatch.setenv(REQUEST, "x-req, Accept.*")
    monkeypatch.setenv(RESPONSE, "X-RES")
    sent = CIMultiDict([("X-Req", "1"), ("x-req", "2"), ("Accept-Language", "de"), ("X-Requested", "no")])
    assert captured(sent=sent, got={"x-res": "3", "x-req": "no"}) == {
        "http.request.header.x-req": ("1", "2"),
        "http.request.header.accept-language": ("de",),
        "http.response.header.x-res": ("3",),
    }


def test_sanitized_headers_keep_their_values_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured name that matches part of the sanitize list shows no value."""
    monkeypatch.setenv(REQUEST, ".*")
    monkeypatch.setenv(RESPONSE, "set-cookie")
    monkeypatch.setenv(SANITIZE, "uthor,cookie")
    sent = {"Authorization": "SECRET", "Accept": "*/*"}
    assert captured(sent=sent, got={"Set-Cookie": "SECRET"}) == {
        "http.request.header.authorization": ("[REDACTED]",),
        "http.request.header.accept": ("*/*",),
        "http.response.header.set-cookie": ("[REDACTED]",),
    }


def test_urls_in_headers_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured location is a URL like the others."""
    monkeypatch.setenv(REQUEST, "referer")
    monkeypatch.setenv(RESPONSE, "location,content-location,link")
    got = {"Location": "/next?token=SECRET#top", "Content-Location": "http://u:p@x.test/", "Link": "a?b=c"}
    assert captured(sent={"Referer": "http://x.test/?q=SECRET"}, got=got) == {
        "http.request.header.referer": ("http://x.test/?q=REDACTED",),
        "http.response.header.location": ("/next?token=REDACTED",),
        "http.response.header.content-location": ("http://REDACTED:REDACTED@x.test/",),
        "http.response.header.link": ("a?b=c",),
    }


def test_known_methods_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is a full override, and compares case."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS", "GET, BREW")
    environment = read_environment()
    assert [environment.method(method) for method in ("GET", "BREW", "POST", "brew")] == [
        "GET",
        "BREW",
        "_OTHER",
        "_OTHER",
    ]


@pytest.mark.parametrize("value", [None, "", " , "])
def test_known_methods_are_those_of_the_conventions(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """Nothing said, or nothing in it, means the convention's own list."""
    if value is not None:
        monkeypatch.setenv("OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS", value)
    assert read_environment().methods == KNOWN_METHODS


def test_a_broken_expression_is_ignored_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A typo in the environment does not keep an application from starting, and costs the one entry."""
    monkeypatch.setenv(REQUEST, "x-(,x-req")
    assert captured(sent={"X-Req": "1"}) == {"http.request.header.x-req": ("1",)}
    assert any(REQUEST in record.message and "'x-('" in record.message for record in caplog.records)


def test_variables_are_read_when_a_hook_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change holds for hooks made later, and not for those that exist."""
    with driven() as before:
        monkeypatch.setenv("OTEL_PYTHON_EXCLUDED_URLS", ".*")
        before.get()
        assert before.spans
        with driven() as after:
            after.get()
            assert not after.spans


@pytest.mark.parametrize(
    ("installed", "records"), [("0.52b0", False), ("0.55b0", True), ("0.66b1", True), ("1.0", True), (None, True)]
)
def test_an_old_contrib_records_no_duration(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, records: bool
) -> None:
    """Before 0.55b0 it has no metrics, whatever the environment asks of it."""

    def version(_: str) -> str:
        if installed is None:
            raise _environment.metadata.PackageNotFoundError
        return installed

    monkeypatch.setattr(_environment.metadata, "version", version)
    assert records is _environment._contrib_has_metrics.__wrapped__()

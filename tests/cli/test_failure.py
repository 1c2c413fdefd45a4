"""What failed is named with what to look at."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from aiohttp_hardened import Phase, PhaseRecord, RequestRecord
from aiohttp_hardened._cli._failure import Failure, failure_of, without_secrets
from aiohttp_hardened._cli._waterfall import Waterfall
from aiohttp_hardened.testing import ERROR_TYPES

ATTEMPT: Any = None
FIELDS: dict[str, Any] = {
    "start_ns": 0,
    "duration": 0.001,
    "server_address": "x.test",
    "server_port": 443,
    "attributes": {},
    "request_id": 1,
    "attempt": ATTEMPT,
}


def waterfall(request_error: str | None, *records: PhaseRecord) -> Waterfall:
    request = RequestRecord(phase=Phase.REQUEST, error_type=request_error, method="GET", **FIELDS)
    return Waterfall("GET", "https://x.test/", 0, [*records, request])


@pytest.mark.parametrize(
    ("phase", "word"),
    [(phase, word) for phase, words in ERROR_TYPES.items() for word in sorted(words) if word != "_OTHER"],
)
def test_every_word_has_advice_of_its_own(phase: Phase, word: str) -> None:
    """No word of the closed lists is answered with what is said of its phase in general."""
    if phase is Phase.QUEUE:
        return  # its one word is its general case
    general = Failure(phase, "_OTHER")
    assert general.meaning != Failure(phase, word).meaning


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_advice(phase: Phase) -> None:
    """What nobody foresaw is answered too."""
    failure = Failure(phase, "_OTHER")
    assert f"failed in {phase}: _OTHER: {failure.meaning}; look at {failure.look_at}" == str(failure)


@pytest.mark.parametrize(
    ("word", "meaning"), [("404", "the server declines"), ("503", "the server fails"), ("407", "the proxy wants")]
)
def test_a_status(word: str, meaning: str) -> None:
    """A status means that the connection is fine; a 407 is the proxy's."""
    assert meaning in Failure(Phase.REQUEST, word).meaning


def test_the_word_of_a_phase() -> None:
    """The word is the failed phase's."""
    tls = PhaseRecord(phase=Phase.TLS, error_type="certificate_expired", **FIELDS)
    failure = failure_of(
        aiohttp.ServerFingerprintMismatch(b"", b"", "x", 1), [waterfall("tls_certificate_expired", tls)]
    )
    assert (Phase.TLS, "certificate_expired") == (failure.phase, failure.word)


def test_a_client_certificate_refused_after_the_handshake() -> None:
    """Under TLS 1.3 the handshake has gone well; the word stands on the request alone."""
    tls = PhaseRecord(phase=Phase.TLS, **FIELDS)
    exc = aiohttp.ServerFingerprintMismatch(b"", b"", "x", 1)
    failure = failure_of(exc, [waterfall("tls_client_certificate_rejected", tls)])
    assert "client_certificate_rejected" == failure.word
    assert "--client-cert" in failure.look_at


def test_the_note_is_the_message() -> None:
    """What the package has added to the exception is what is shown."""
    exc = aiohttp.ServerDisconnectedError()
    exc.add_note("waiting for the response of GET x.test:443 failed")
    failure = failure_of(exc, [waterfall("aiohttp.ServerDisconnectedError")])
    assert "waiting for the response of GET x.test:443 failed" == failure.message
    assert (Phase.REQUEST, "aiohttp.ServerDisconnectedError") == (failure.phase, failure.word)


def test_a_failure_before_the_first_attempt() -> None:
    """An exception that no attempt knows of is named by its class."""
    failure = failure_of(ValueError("Location https://u:p@x.test/?token=SECRET is odd"), [])
    assert (Phase.REQUEST, "ValueError") == (failure.phase, failure.word)
    assert "ValueError: Location https://x.test/?REDACTED is odd" == failure.message


def test_texts_without_secrets() -> None:
    """Credentials and queries of all URLs in a text are cut out; the rest stays."""
    text = "407, url='http://me:pw@proxy.test:3128', from https://x.test/a?token=SECRET to b@c"
    assert "407, url='http://proxy.test:3128', from https://x.test/a?REDACTED to b@c" == without_secrets(text)

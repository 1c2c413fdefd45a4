"""The environment variables that the conventions define for HTTP clients, read when a hook is made."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Final

from aiohttp_hardened.telemetry._names import OTHER
from aiohttp_hardened.telemetry._redact import redact_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp_hardened._settings import TelemetrySettings

_logger = logging.getLogger("aiohttp_hardened")

# RFC 9110, section 9.3, with PATCH (RFC 5789) and QUERY, as the HTTP conventions list them.
KNOWN_METHODS: Final = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"}
)

_DISABLED: Final = "OTEL_SDK_DISABLED"
_KNOWN: Final = "OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS"
_CAPTURE_REQUEST: Final = "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_CLIENT_REQUEST"
_CAPTURE_RESPONSE: Final = "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_CLIENT_RESPONSE"
_SANITIZE: Final = "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_SANITIZE_FIELDS"
_EXCLUDED_HERE: Final = "OTEL_PYTHON_AIOHTTP_CLIENT_EXCLUDED_URLS"
_EXCLUDED: Final = "OTEL_PYTHON_EXCLUDED_URLS"
_STABILITY: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"

VARIABLES: Final = (
    _DISABLED,
    _KNOWN,
    _CAPTURE_REQUEST,
    _CAPTURE_RESPONSE,
    _SANITIZE,
    _EXCLUDED_HERE,
    _EXCLUDED,
    _STABILITY,
)

_HOLDING_URLS: Final = frozenset({"location", "content-location", "referer"})


@dataclass(frozen=True, slots=True)
class Headers:
    """Which headers become attributes.

    Args:
        captured: Names, as a regular expression.
        sanitized: Of those, whose values are kept back.
    """

    captured: re.Pattern[str]
    sanitized: re.Pattern[str] | None

    def attributes(self, prefix: str, headers: Mapping[str, str], settings: TelemetrySettings) -> dict[str, list[str]]:
        """Return the attributes for a message's headers; names keep their dashes, as the convention has it."""
        found: dict[str, list[str]] = {}
        for name, value in headers.items():
            if not self.captured.fullmatch(name):
                continue
            key = name.lower()
            if self.sanitized is not None and self.sanitized.search(name):
                shown = "[REDACTED]"
            else:
                shown = redact_url(value, settings) if key in _HOLDING_URLS else value
            found.setdefault(prefix + key, []).append(shown)
        return found


@dataclass(frozen=True, slots=True)
class Environment:
    """What the variables said.

    Args:
        disabled: Nothing is told; trace context of others still travels on.
        methods: Methods that keep their name.
        request_headers: Captured of requests; ``None``: none.
        response_headers: Captured of responses.
        excluded: URLs that are not told of.
        others_emit_duration: contrib's instrumentation emits the stable request histogram.
    """

    disabled: bool
    methods: frozenset[str]
    request_headers: Headers | None
    response_headers: Headers | None
    excluded: re.Pattern[str] | None
    others_emit_duration: bool

    def method(self, method: str) -> str:
        """Return a method, or ``_OTHER`` for one that is not known."""
        return method if method in self.methods else OTHER


def read_environment() -> Environment:
    """Read the variables; a changed one holds for hooks made later."""
    return _parse(raw_environment())


def raw_environment() -> tuple[str | None, ...]:
    """Return the values of ``VARIABLES`` as they are."""
    return tuple(map(os.environ.get, VARIABLES))


@lru_cache(maxsize=16)
def _parse(raw: tuple[str | None, ...]) -> Environment:
    values: dict[str, str | None] = dict(zip(VARIABLES, raw, strict=True))
    known = _list(values[_KNOWN])
    sanitized = _pattern(values, _SANITIZE)
    request, response = _pattern(values, _CAPTURE_REQUEST), _pattern(values, _CAPTURE_RESPONSE)
    # As contrib: the variable of this library hides the general one, even when it is empty.
    excluded = _EXCLUDED if values[_EXCLUDED_HERE] is None else _EXCLUDED_HERE
    return Environment(
        disabled=(values[_DISABLED] or "").strip().lower() == "true",
        methods=frozenset(known) if known else KNOWN_METHODS,
        request_headers=None if request is None else Headers(request, sanitized),
        response_headers=None if response is None else Headers(response, sanitized),
        excluded=_pattern(values, excluded, flags=0),
        others_emit_duration=not {"http", "http/dup"}.isdisjoint(_list(values[_STABILITY])) and _contrib_has_metrics(),
    )


def _list(value: str | None) -> list[str]:
    return [each.strip() for each in (value or "").split(",") if each.strip()]


def _pattern(values: dict[str, str | None], name: str, flags: int = re.IGNORECASE) -> re.Pattern[str] | None:
    usable: list[str] = []
    for expression in _list(values[name]):
        try:
            re.compile(expression)
        except re.error as exc:
            # A typo in the environment must not keep an application from starting.
            _logger.warning("%s holds %r, which is not a regular expression (%s); it is ignored", name, expression, exc)
        else:
            usable.append(f"(?:{expression})")
    return re.compile("|".join(usable), flags) if usable else None


@lru_cache(maxsize=1)
def package_version() -> str | None:
    """Return this package's version, for the instrumentation scope."""
    try:
        return metadata.version("aiohttp-hardened")
    except metadata.PackageNotFoundError:  # run from a source tree
        return None


@lru_cache(maxsize=1)
def _contrib_has_metrics() -> bool:
    """Say whether the installed instrumentation of opentelemetry-python-contrib records durations: since 0.55b0."""
    try:
        version = metadata.version("opentelemetry-instrumentation-aiohttp-client")
    except metadata.PackageNotFoundError:  # vendored under another name: new enough, as far as we know
        return True
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is None or (int(found[1]), int(found[2])) >= (0, 55)

"""The environment variables that the conventions define for HTTP clients, read when a hook is made."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiohttp_hardened.telemetry._names import OTHER

if TYPE_CHECKING:
    from collections.abc import Mapping

KNOWN_METHODS: Final = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"}
)

_KNOWN: Final = "OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS"
_CAPTURE_REQUEST: Final = "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_CLIENT_REQUEST"
_CAPTURE_RESPONSE: Final = "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_CLIENT_RESPONSE"
_SANITIZE: Final = "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_SANITIZE_FIELDS"
_EXCLUDED: Final = ("OTEL_PYTHON_AIOHTTP_CLIENT_EXCLUDED_URLS", "OTEL_PYTHON_EXCLUDED_URLS")
_STABILITY: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"


@dataclass(frozen=True, slots=True)
class Headers:
    """Which headers become attributes.

    Args:
        captured: Names, as regular expressions.
        sanitized: Of those, whose values are kept back.
    """

    captured: re.Pattern[str] | None
    sanitized: re.Pattern[str] | None

    def attributes(self, prefix: str, headers: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the attributes for a message's headers; names keep their dashes, as the convention has it."""
        if self.captured is None:
            return {}
        found: dict[str, list[str]] = {}
        for name, value in headers.items():
            if self.captured.fullmatch(name):
                kept_back = self.sanitized is not None and self.sanitized.search(name)
                found.setdefault(prefix + name.lower(), []).append("[REDACTED]" if kept_back else value)
        return found


@dataclass(frozen=True, slots=True)
class Environment:
    """What the variables said.

    Args:
        methods: Methods that keep their name.
        request_headers: Captured of requests.
        response_headers: Captured of responses.
        excluded: URLs that are not told of.
        others_emit_duration: contrib's instrumentation emits the stable request histogram.
    """

    methods: frozenset[str]
    request_headers: Headers
    response_headers: Headers
    excluded: re.Pattern[str] | None
    others_emit_duration: bool

    def method(self, method: str) -> str:
        """Return a method, or ``_OTHER`` for one that is not known."""
        return method if method in self.methods else OTHER


def read_environment() -> Environment:
    """Read the variables."""
    known = _list(_KNOWN)
    sanitized = _pattern(_list(_SANITIZE))
    excluded = next((found for name in _EXCLUDED if (found := _list(name))), [])
    return Environment(
        methods=frozenset(known) if known else KNOWN_METHODS,
        request_headers=Headers(_pattern(_list(_CAPTURE_REQUEST)), sanitized),
        response_headers=Headers(_pattern(_list(_CAPTURE_RESPONSE)), sanitized),
        excluded=_pattern(excluded, flags=0),
        others_emit_duration=bool({"http", "http/dup"} & set(_list(_STABILITY))),
    )


def _list(name: str) -> list[str]:
    return [each.strip() for each in os.environ.get(name, "").split(",") if each.strip()]


def _pattern(expressions: list[str], flags: int = re.IGNORECASE) -> re.Pattern[str] | None:
    return re.compile("|".join(expressions), flags) if expressions else None

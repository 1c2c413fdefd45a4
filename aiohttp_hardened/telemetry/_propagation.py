"""Trace context in the headers of a request.

Injected through the global propagator, unless the caller sent trace context of their
own, the host is not meant to see it, or a redirect left the origin. Nothing that
somebody else wrote is replaced; what an earlier attempt of the same request wrote is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from multidict import CIMultiDict, istr
from opentelemetry import propagate

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator

    from aiohttp_hardened.timing._request import Attempt

_W3C: Final = frozenset({"traceparent", "tracestate"})
_BAGGAGE: Final = istr("baggage")
_MOST_BAGGAGE: Final = 8192
"""Bytes; W3C Baggage, section 3.3.2."""
_INJECTED: Final = "injected"


def propagate_trace(attempt: Attempt, context: Context, propagate_to: tuple[str, ...] | None) -> None:
    """Inject a trace context into an attempt's headers.

    Args:
        attempt: Whose headers.
        context: What to inject.
        propagate_to: Host names, or suffixes that start with a dot; ``None``: every host.
    """
    headers = attempt.headers
    state = attempt.request.state
    fields = _fields(propagate.get_global_textmap())
    for field in fields:
        if field in headers:
            if not _take_back(headers, fields, state.get(_INJECTED)):
                return
            break
    if attempt.cross_origin or (propagate_to is not None and not is_allowed(attempt.server_address, propagate_to)):
        return
    if _BAGGAGE in headers:
        _inject_beside_baggage(headers, context)
    else:
        propagate.inject(headers, context)
    state[_INJECTED] = context


def _take_back(headers: CIMultiDict[str], fields: tuple[istr, ...], injected: Context | None) -> bool:
    """Remove what an earlier attempt of the same request injected; ``False``: it is somebody else's."""
    if injected is None:
        return False
    ours: CIMultiDict[str] = CIMultiDict()
    propagate.inject(ours, injected)
    if any(headers.get(field) != ours.get(field) for field in fields):
        return False
    for field in fields:
        headers.popall(field, None)
    if _BAGGAGE in ours and headers.get(_BAGGAGE) == ours[_BAGGAGE]:
        del headers[_BAGGAGE]
    return True


def _inject_beside_baggage(headers: CIMultiDict[str], context: Context) -> None:
    """Add our baggage to the caller's in one header; of a key in both, theirs counts."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    ours = carrier.pop("baggage", "")
    headers.update(carrier)
    members = [member for value in headers.getall(_BAGGAGE) for member in value.split(",")]
    keys = {_baggage_key(member) for member in members}
    added = [member for member in ours.split(",") if member and _baggage_key(member) not in keys]
    merged = ",".join([*members, *added])
    if added and len(merged) <= _MOST_BAGGAGE:
        headers[_BAGGAGE] = merged


def _baggage_key(member: str) -> str:
    return member.partition("=")[0].strip()


@lru_cache(maxsize=8)
def _fields(propagator: TextMapPropagator) -> tuple[istr, ...]:
    """Return the headers whose presence says that the caller propagates; baggage alone does not."""
    return tuple(istr(field) for field in sorted(_W3C | {field.lower() for field in propagator.fields} - {"baggage"}))


@lru_cache(maxsize=512)
def is_allowed(host: str, hosts: tuple[str, ...]) -> bool:
    """Say whether a host is among names and suffixes."""
    names = [each.lower() for each in hosts]
    return any(host == each or (each.startswith(".") and host.endswith(each)) for each in names)

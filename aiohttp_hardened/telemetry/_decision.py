"""Whether a request is told of at all, decided once, when it starts."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from opentelemetry import context as context_api

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from aiohttp_hardened.telemetry._environment import Environment
    from aiohttp_hardened.timing._request import Attempt

# ``create_key`` gives its keys a random suffix, so they can only be had as the objects they are;
# the plain name is what ``opentelemetry.instrumentation.utils`` sets beside them.
_SUPPRESSING: Final[tuple[str, ...]] = (
    *(
        key
        for name in ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY")
        if (key := getattr(context_api, name, None)) is not None
    ),
    "suppress_instrumentation",
)


class Decision(Enum):
    """What is told of a request."""

    TOLD = auto()
    """Spans and metrics."""
    SUPPRESSED = auto()
    """Nothing, but the trace context of an outer span travels on."""
    EXCLUDED = auto()
    """Nothing: its URL is on a list of those to leave alone."""


def decide(attempt: Attempt, environment: Environment) -> Decision:
    """Return the decision for an attempt's request; all hooks and attempts share the first one.

    Args:
        attempt: Of the request.
        environment: Of the hook that asks.
    """
    state = attempt.request.state
    decision: Decision | None = state.get(Decision)
    if decision is None:
        decision = state[Decision] = _decide(attempt, environment, context_api.get_current())
    return decision


def _decide(attempt: Attempt, environment: Environment, context: Context) -> Decision:
    if environment.disabled or (context and any(map(context.get, _SUPPRESSING))):
        return Decision.SUPPRESSED
    if environment.excluded is not None and environment.excluded.search(str(attempt.url)):
        return Decision.EXCLUDED
    return Decision.TOLD

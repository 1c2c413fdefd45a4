"""Whether a request is told of at all, decided once, when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as context_api

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from aiohttp_hardened.telemetry._environment import Environment
    from aiohttp_hardened.timing._request import Attempt

# ``create_key`` gives its keys a random suffix, so they can only be had as the objects they are;
# the plain name is what ``opentelemetry.instrumentation.utils`` sets beside them.
_SUPPRESSING: Final[tuple[str, ...]] = tuple(
    key
    for name in ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY")
    if (key := getattr(context_api, name, None)) is not None
) + ("suppress_instrumentation",)


class Decision:
    """What was decided for a request.

    Args:
        told: Spans and metrics are made.
        context: The caller's context.
    """

    __slots__ = ("context", "told")

    def __init__(self, context: Context, *, told: bool) -> None:
        self.context = context
        self.told = told


_KEY: Final = "telemetry"


def decide(attempt: Attempt, environment: Environment) -> Decision:
    """Return the decision for an attempt's request; both hooks and all attempts share the first one."""
    state: dict[object, Any] = attempt.request.state
    decision: Decision | None = state.get(_KEY)
    if decision is None:
        context = context_api.get_current()
        told = not (context and any(context.get(key) for key in _SUPPRESSING))
        if told and environment.excluded is not None:
            told = environment.excluded.search(str(attempt.url)) is None
        decision = state[_KEY] = Decision(context, told=told)
    return decision

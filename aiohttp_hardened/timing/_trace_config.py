"""The wiring: aiohttp's tracing signals to a request's timing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp

from aiohttp_hardened.timing._request import RequestTiming

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import SimpleNamespace

    from aiohttp_hardened.timing._hooks import Hooks


class HardenedTraceConfig(aiohttp.TraceConfig):
    """A TraceConfig whose context is the request's timing.

    Most of what it needs comes from the connector: aiohttp sends no signal for a
    phase that fails. The signals left are the request's own end and failure.

    Args:
        hooks: Who listens.
        prepare: Called with the session at the start of each request, to make its
            connector one that tells of its phases; ``None``: it is one of ours,
            which tells of the response's head too, at a lower price than a signal.
    """

    def __init__(self, hooks: Hooks, prepare: Callable[[aiohttp.ClientSession], None] | None = None) -> None:
        super().__init__()
        self.hooks = hooks
        self._prepare = prepare
        if prepare is not None:
            self.on_request_start.append(self._request_start)
            self.on_request_end.append(_request_end)
        self.on_request_exception.append(_request_exception)

    def trace_config_ctx(self, trace_request_ctx: Any = None) -> Any:
        """Return the timing of one request."""
        return RequestTiming(self.hooks, trace_request_ctx)

    async def _request_start(
        self, session: aiohttp.ClientSession, _: SimpleNamespace, __: aiohttp.TraceRequestStartParams
    ) -> None:
        if self._prepare is not None:
            self._prepare(session)


async def _request_end(_: aiohttp.ClientSession, timing: Any, params: aiohttp.TraceRequestEndParams) -> None:
    timing.ended(params.response)


async def _request_exception(
    _: aiohttp.ClientSession, timing: Any, params: aiohttp.TraceRequestExceptionParams
) -> None:
    timing.failed(params.exception)

"""Alerts on what goes wrong inside the process."""

from __future__ import annotations

from tools.dashboards._alert import Alert
from tools.dashboards._recordings import total
from tools.dashboards._series import CONTEXTS, TELEMETRY_ERRORS

CONTEXTS_GROWING = Alert(
    name="AiohttpContextsGrowing",
    expr=f"max by (job, instance) (min_over_time({CONTEXTS}[10m]) - max_over_time({CONTEXTS}[10m] offset 20m)) >= 5",
    pending="15m",
    severity="warning",
    summary="{{ $labels.instance }} makes ever more SSL contexts",
    description="{{ $value | humanize }} more SSL contexts live than 20 minutes ago, and it goes on.",
    means="""There is one context per trust decision, and their number does not depend on traffic. A number that climbs
means that somebody makes new `TLSSettings` again and again, each with another value, and keeps them: each costs
milliseconds to build and hundreds of kilobytes to keep, and none can resume another's sessions.""",
    confirm="""The panel "SSL contexts" climbs with traffic. Look for `TLSSettings(...)` inside functions that run per
request or per tenant, with a field that differs each time: a path, a name. `aiohttp-hardened probe` uses one context
for all its requests, so it does not show it.""",
    fix="""Make settings once, at import time, and share them: equal settings give the same context. Close the sessions
that you no longer need: their context goes with the last of them.""",
)

TELEMETRY_FAILING = Alert(
    name="AiohttpTelemetryErrors",
    expr=f"{total(TELEMETRY_ERRORS, '', '15m', ('job', 'instance'))} > 0",
    severity="warning",
    summary="Hooks of {{ $labels.instance }} fail",
    description="{{ $value | humanize }} failures of hooks were contained within 15 minutes: spans or metrics are "
    "missing.",
    means="""A hook raised: yours, or ours through a span processor or an exporter. Requests are not harmed, but what it
should have told is lost, so other panels may be wrong.""",
    confirm="""The log of `aiohttp_hardened` has the exception, once in a while. `aiohttp-hardened probe https://HOST/`
runs without your hooks: if it is fine, the hook is yours.""",
    fix="Repair the hook: it is called with each finished phase, must return quickly and must not raise.",
)

ALERTS = (CONTEXTS_GROWING, TELEMETRY_FAILING)

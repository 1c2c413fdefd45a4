"""Metrics and attributes of ``telemetry/_names.py`` under the names that Prometheus has for them.

The Python exporter, the collector and Prometheus' own OTLP receiver agree on these
names: each other character becomes ``_``, a known unit is appended, one in braces is not,
and a counter ends in ``_total``. ``tests/dashboards/test_roads.py`` compares them with what
is emitted.
"""

from __future__ import annotations

import re
from typing import Final

from aiohttp_hardened.telemetry import _names

_METRICS: Final = {metric.name: metric for metric in _names.METRICS}
_UNITS: Final = {"s": "_seconds"}


def family(metric: str) -> str:
    """Return the name of a metric; a histogram's series add ``_bucket``, ``_count`` or ``_sum`` to it.

    Raises:
        KeyError: ``_names.METRICS`` has no such metric.
    """
    declared = _METRICS[metric]
    return label(metric) + _UNITS.get(declared.unit, "") + ("_total" if declared.kind == "counter" else "")


def label(attribute: str) -> str:
    """Return the name of an attribute's label."""
    return re.sub(r"[^a-zA-Z0-9]+", "_", attribute)


REQUESTS: Final = family(_names.METRIC_REQUEST_DURATION)
ACTIVE_REQUESTS: Final = family(_names.METRIC_ACTIVE_REQUESTS)
OPEN_CONNECTIONS: Final = family(_names.METRIC_OPEN_CONNECTIONS)
CONNECTIONS: Final = family(_names.METRIC_CONNECTION_DURATION)
QUEUE: Final = family(_names.METRIC_TIME_IN_QUEUE)
DNS: Final = family(_names.METRIC_DNS_DURATION)
DNS_ASKED: Final = family(_names.METRIC_DNS_CACHE_LOOKUPS)
TCP: Final = family(_names.METRIC_TCP_DURATION)
RETRANSMITS: Final = family(_names.METRIC_SYN_RETRANSMITS)
TLS: Final = family(_names.METRIC_TLS_DURATION)
SETUP: Final = family(_names.METRIC_SETUP_DURATION)
NOT_AFTER: Final = family(_names.METRIC_NOT_AFTER)
RELOADS: Final = family(_names.METRIC_RELOADS)
CONTEXTS: Final = family(_names.METRIC_SSL_CONTEXTS)
BUSY: Final = family(_names.METRIC_EXECUTOR_BUSY)
QUEUED: Final = family(_names.METRIC_EXECUTOR_QUEUED)
TELEMETRY_ERRORS: Final = family(_names.METRIC_TELEMETRY_ERRORS)

HOST: Final = label(_names.SERVER_ADDRESS)
PORT: Final = label(_names.SERVER_PORT)
NAME: Final = label(_names.DNS_QUESTION_NAME)
SOURCE: Final = label(_names.DNS_SOURCE)
ERROR: Final = label(_names.ERROR_TYPE)
STATUS: Final = label(_names.HTTP_STATUS_CODE)
METHOD: Final = label(_names.HTTP_REQUEST_METHOD)
STATE: Final = label(_names.HTTP_CONNECTION_STATE)
NETWORK: Final = label(_names.NETWORK_TYPE)
VERSION: Final = label(_names.TLS_PROTOCOL_VERSION)
RESUMED: Final = label(_names.TLS_RESUMED)
DECISION: Final = label(_names.TLS_NAME)
ROLE: Final = label(_names.TLS_ROLE)
OUTCOME: Final = label(_names.OUTCOME)

FINE: Final = f'{ERROR}=""'
FAILED: Final = f'{ERROR}!=""'
# Older Python exporters write a boolean as "True".
WAS_RESUMED: Final = f'{RESUMED}=~"(?i)true"'
GAVE_UP: Final = f'{ERROR}="timed_out"'
STALE: Final = f'{SOURCE}="{_names.SOURCE_STALE}"'
REJECTED: Final = f'{OUTCOME}="rejected"'

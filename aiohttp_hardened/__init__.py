"""Preconfigured aiohttp client sessions whose connections explain themselves.

``create_session()`` returns a plain ``aiohttp.ClientSession``: names are resolved
by aiodns, TLS contexts are shared and verified, each phase has its own budget, and
DNS, TCP and TLS are separate OpenTelemetry spans and histograms.
"""

from __future__ import annotations

from aiohttp_hardened._instrument import instrument, instrument_session, uninstrument
from aiohttp_hardened._session import create_connector, create_session, create_trace_config
from aiohttp_hardened._settings import (
    DEFAULTS,
    DNSSettings,
    PoolSettings,
    Settings,
    TelemetrySettings,
    TimeoutSettings,
    TLSSettings,
)
from aiohttp_hardened.exceptions import (
    CertificateReloadError,
    DNSLookupError,
    HardenedError,
    PhaseTimeoutError,
    PlaintextBoundaryError,
    ReloadResult,
    SettingsError,
    UnverifiedRequestError,
)
from aiohttp_hardened.timing import Phase, PhaseHook, PhaseRecord, RequestRecord
from aiohttp_hardened.timing._notes import failed_phase
from aiohttp_hardened.tls import create_ssl_context, reload_tls

__all__ = [
    "DEFAULTS",
    "CertificateReloadError",
    "DNSLookupError",
    "DNSSettings",
    "HardenedError",
    "Phase",
    "PhaseHook",
    "PhaseRecord",
    "PhaseTimeoutError",
    "PlaintextBoundaryError",
    "PoolSettings",
    "ReloadResult",
    "RequestRecord",
    "Settings",
    "SettingsError",
    "TLSSettings",
    "TelemetrySettings",
    "TimeoutSettings",
    "UnverifiedRequestError",
    "create_connector",
    "create_session",
    "create_ssl_context",
    "create_trace_config",
    "failed_phase",
    "instrument",
    "instrument_session",
    "reload_tls",
    "uninstrument",
]


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415  (only who asks pays for it)

        return version("aiohttp-hardened")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The errors that are this package's own; aiohttp's reach the caller untouched.

HardenedError
├── SettingsError (ValueError)                    a setting that cannot be meant
├── PhaseTimeoutError (TimeoutError)              a budget of ours ran out: .phase .budget
├── DNSLookupError (OSError)                      the resolver's own answer: .reason
├── UnverifiedRequestError (ClientConnectionError)  a request that would not verify its peer
├── PlaintextBoundaryError (ClientConnectionError)  plaintext across a plaintext-to-TLS boundary
└── CertificateReloadError                        a new certificate that was not taken
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import aiohttp

if TYPE_CHECKING:
    from datetime import datetime

    from aiohttp_hardened.timing._phase import Phase

__all__ = [
    "CertificateReloadError",
    "DNSLookupError",
    "HardenedError",
    "PhaseTimeoutError",
    "PlaintextBoundaryError",
    "ReloadResult",
    "SettingsError",
    "UnverifiedRequestError",
]


class HardenedError(Exception):
    """Root of the errors that this package raises by itself."""


class SettingsError(HardenedError, ValueError):
    """A setting that cannot be meant; the message names the field and what is allowed."""


class PhaseTimeoutError(HardenedError, TimeoutError):
    """A budget of ours ran out; found as the ``__cause__`` of aiohttp's timeout error.

    ``errno`` stays ``None``: aiohttp would otherwise wrap it as a connector
    error (``TCPConnector._wrap_create_connection``).

    Args:
        message: What ran out, in words.
        phase: The phase that was interrupted.
        budget: The budget that ran out, in seconds.
    """

    def __init__(self, message: str, *, phase: Phase, budget: float) -> None:
        super().__init__(message)
        self.phase = phase
        self.budget = budget

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the keyword arguments, which ``OSError`` would drop, and the notes."""
        return (_phase_timeout, (str(self), self.phase, self.budget), self.__dict__)


def _phase_timeout(message: str, phase: Phase, budget: float) -> PhaseTimeoutError:
    return PhaseTimeoutError(message, phase=phase, budget=budget)


class DNSLookupError(HardenedError, OSError):
    """A name server's answer that is not an address.

    Reaches the caller as ``ClientConnectorDNSError.os_error``.

    Args:
        message: The resolver's own words.
        reason: One of ``host_not_found``, ``no_data``, ``server_failure``,
            ``refused``, ``malformed_name``, ``timed_out``.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(None, message)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the keyword argument, which ``OSError`` would drop, and the notes."""
        return (_dns_lookup, (self.strerror, self.reason), self.__dict__)


def _dns_lookup(message: str, reason: str) -> DNSLookupError:
    return DNSLookupError(message, reason=reason)


class UnverifiedRequestError(HardenedError, aiohttp.ClientConnectionError):
    """A request that would not have verified its peer, refused before it connected."""


class PlaintextBoundaryError(HardenedError, aiohttp.ClientConnectionError):
    """Plaintext stood across the boundary between plaintext and TLS.

    Whoever can write to the plaintext side of a connection can otherwise put
    bytes in front of the encrypted stream (CVE-2011-0411 and its family).
    """


class CertificateReloadError(HardenedError):
    """A new certificate or trust store that was not taken; the old one serves on."""


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """What one reload did.

    Args:
        outcome: ``applied``, ``unchanged`` (the same bytes) or ``rejected``.
        reason: Why it was rejected, in OpenSSL's or the validator's words.
        not_after: When the own certificate ends, if there is one (UTC).
    """

    outcome: Literal["applied", "unchanged", "rejected"]
    reason: str | None = None
    not_after: datetime | None = None

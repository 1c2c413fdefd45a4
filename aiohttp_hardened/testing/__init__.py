"""The building blocks that this project tests itself with, for suites of yours (extra ``testing``).

Everything is on loopback and made of real parts: certificates, TLS servers, proxies,
addresses that drop SYNs, name servers that lie. As pytest fixtures they are in
``aiohttp_hardened.testing.plugin``. Each is a context manager that leaves nothing behind.
"""

from aiohttp_hardened.testing._bundles import BundleFault, broken_certificate_bundle
from aiohttp_hardened.testing._ca import CertificateFiles, ThrowawayCA, throwaway_ca
from aiohttp_hardened.testing._faults import (
    Address,
    accept_queue_overflow,
    dead_address,
    full_default_executor,
    plaintext_peer,
    refusing_address,
    stalled_tls,
)
from aiohttp_hardened.testing._nameserver import FakeNameServer
from aiohttp_hardened.testing._proxy import http_proxy, scripted_proxy
from aiohttp_hardened.testing._raw import raw_server
from aiohttp_hardened.testing._recorder import ERROR_TYPES, PhaseRecorder
from aiohttp_hardened.testing._resolver import FixedResolver
from aiohttp_hardened.testing._servers import HTTPServer, TLSServer, server_context

__all__ = [
    "ERROR_TYPES",
    "Address",
    "BundleFault",
    "CertificateFiles",
    "FakeNameServer",
    "FixedResolver",
    "HTTPServer",
    "PhaseRecorder",
    "TLSServer",
    "ThrowawayCA",
    "accept_queue_overflow",
    "broken_certificate_bundle",
    "dead_address",
    "full_default_executor",
    "http_proxy",
    "plaintext_peer",
    "raw_server",
    "refusing_address",
    "scripted_proxy",
    "server_context",
    "stalled_tls",
    "throwaway_ca",
]

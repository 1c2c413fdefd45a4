"""The aiohttp.web side: certificates that are renewed while they serve, bursts, handshakes that end.

``run_app(app, certfile=..., keyfile=...)`` is ``aiohttp.web.run_app`` with all of it.
``HardenedTCPSite`` is the rung below, for a runner of your own; ``create_server_ssl_context``
the one below that, for everything that takes an ``ssl.SSLContext``.

Under gunicorn (``-k aiohttp.GunicornWebWorker``) the worker makes its sites and its TLS context
by itself: neither backlog, deadline nor reload of ours touches its connections. See
"Serve TLS" in the README for what works there.
"""

from aiohttp_hardened.server._context import create_server_ssl_context
from aiohttp_hardened.server._hangup import reload_on_sighup
from aiohttp_hardened.server._run import run_app
from aiohttp_hardened.server._site import HardenedTCPSite
from aiohttp_hardened.telemetry._handshakes import ServerHandshakeHook
from aiohttp_hardened.timing._handshake import HandshakeHook, HandshakeRecord

__all__ = [
    "HandshakeHook",
    "HandshakeRecord",
    "HardenedTCPSite",
    "ServerHandshakeHook",
    "create_server_ssl_context",
    "reload_on_sighup",
    "run_app",
]

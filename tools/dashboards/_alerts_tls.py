"""Alerts on handshakes, certificates and trust."""

from __future__ import annotations

from typing import Final

from tools.dashboards._alert import Alert
from tools.dashboards._recordings import (
    FEWEST,
    HANDSHAKES_PER_REQUEST,
    RESUMPTION,
    SERVER,
    TLS_FAILURE_RATIO,
    TLS_FAILURES,
    total,
)
from tools.dashboards._series import DECISION, ERROR, HOST, NOT_AFTER, PORT, REJECTED, RELOADS, ROLE

_SERVER_NAME: Final = f"{{{{ $labels.{HOST} }}}}:{{{{ $labels.{PORT} }}}}"
_OWNER: Final = f"{{{{ or $labels.{HOST} $labels.{DECISION} }}}}"
_MUCH: Final = 0.05
_SECONDS_IN_A_DAY: Final = 86400
# One of these may be a peer that restarts; the others do not pass by themselves.
_PASSING_TLS: Final = "timed_out|peer_connection_closed|_OTHER"

TOO_MANY_HANDSHAKES = Alert(
    name="AiohttpTooManyHandshakes",
    expr=f"avg by ({', '.join(SERVER)}) ({HANDSHAKES_PER_REQUEST} > 0.1)",
    pending="5m",
    severity="warning",
    summary=f"Connections to {_SERVER_NAME} are not reused",
    description="{{ $value | humanize }} TLS handshakes per request over 10 minutes, for a host that is asked every "
    "5 s or more often; a pool that works stays below 0.1.",
    means="""Requests come often enough to share connections, yet most open one of their own. Each handshake costs a
round trip or two, and about a millisecond of CPU on either side: thirty times what a request on a kept connection
costs.""",
    confirm="""`aiohttp-hardened probe https://HOST/ -n 5`: if the later requests say `reused`, the host keeps
connections and your code does not; if each has lines `tcp` and `tls`, the host closes them.""",
    fix="""Your code: make one session and keep it; a session per request is the usual reason, `force_close=True` or
`Connection: close` another; read bodies to their end. The host: let it keep connections alive for longer than
`pool.keepalive` (15 s), and longer than the pause between two requests. Many processes that each ask seldom cannot
pool: resumption helps there.""",
)

TLS_FAILING = Alert(
    name="AiohttpTLSFailures",
    expr=f'{TLS_FAILURE_RATIO}{{{ERROR}!~"{_PASSING_TLS}"}} > {_MUCH}\n'
    f"or\n({TLS_FAILURE_RATIO} > {_MUCH} and {TLS_FAILURES} >= {FEWEST})",
    severity="critical",
    summary=f"TLS to {_SERVER_NAME} fails: {{{{ $labels.{ERROR} }}}}",
    description=f"{{{{ $value | humanizePercentage }}}} of the handshakes with {_SERVER_NAME} within 10 minutes ended "
    f"with {{{{ $labels.{ERROR} }}}}.",
    means=f"""Handshakes fail for the reason that `error.type` gives. What is about certificates, versions and ciphers
does not pass by itself and counts from the first; `timed_out` and `peer_connection_closed` count from {FEWEST} within
10 minutes.""",
    confirm="""`aiohttp-hardened probe https://HOST/`, with `--ca-file`, `--client-cert` and `--client-key` as in your
settings: the line `tls` fails with the same word, and the advice below it says where to look.""",
    fix="""`certificate_expired`, `certificate_not_yet_valid`: the peer must renew; check the clocks.
`certificate_authority_invalid`: the peer sends no intermediates, or its authority is missing in `trust` and `ca_files`.
`certificate_hostname_mismatch`: the name is not in the certificate. `client_certificate_rejected`: renew yours, or have
its authority trusted. `protocol_version_unsupported`, `no_shared_cipher`: the peer is too old for `minimum_version`.
`plaintext_peer`: no TLS on this port. `timed_out`, `peer_connection_closed`: the peer is overloaded or restarts.""",
)

RESUMPTION_COLLAPSED = Alert(
    name="AiohttpResumptionCollapsed",
    expr=f"{RESUMPTION} < 0.5 * avg_over_time({RESUMPTION}[1h] offset 15m)\n"
    f"and avg_over_time({RESUMPTION}[1h] offset 15m) > 0.3",
    pending="15m",
    severity="warning",
    summary=f"TLS sessions with {_SERVER_NAME} are no longer resumed",
    description="{{ $value | humanizePercentage }} of the handshakes were resumed, less than half of what it was in "
    "the hour before.",
    means="""New connections make full handshakes where they resumed earlier ones. That costs CPU on both sides, most of
it on the server.""",
    confirm="""`aiohttp-hardened probe https://HOST/ -n 3`, from a host where connections are closed between requests:
the lines `tls` tell whether the handshake was resumed. The TLS dashboard shows when it began.""",
    fix="""Usually the peer: its servers stopped sharing their ticket keys, rotate them too often, or it switched
tickets off. Ours: a reload drops the old tickets (look for reloads at that time); processes that restart often begin
without any; a CPython that leaks at each read of a session stops after 4,096 of them, see README.""",
)

CERTIFICATE_EXPIRING = Alert(
    name="AiohttpCertificateExpiring",
    expr=f'min by (job, {DECISION}, {ROLE}) ({NOT_AFTER}{{{ROLE}!=""}}) - time() < 7 * {_SECONDS_IN_A_DAY}\n'
    f'or\nmin by (job, {HOST}) ({NOT_AFTER}{{{HOST}!=""}}) - time() < 7 * {_SECONDS_IN_A_DAY} > -{_SECONDS_IN_A_DAY}',
    severity="warning",
    summary=f"The certificate of {_OWNER} ends soon",
    description=f"The certificate of {_OWNER} ends in {{{{ $value | humanizeDuration }}}}.",
    means="""Your own certificate (labels `aiohttp_tls_name` and `aiohttp_tls_role`) or a peer's (label
`server_address`) ends within 7 days. After that every handshake fails. A peer's is as the last full handshake showed
it; a day after its end this alert leaves the matter to `AiohttpTLSFailures`.""",
    confirm="""`aiohttp-hardened probe https://HOST/ --json`: `tls.server.not_after` of the phase `tls`. Yours: `openssl
x509 -enddate -noout -in /etc/tls/tls.crt`, and compare with what the process has: it may not have reloaded.""",
    fix="""Renew it, and find out why the renewal did not run by itself. Yours: then `reload_tls`, SIGHUP or
`reload_interval` takes it over without a restart. A peer's: tell its owner.""",
)

RELOAD_REJECTED = Alert(
    name="AiohttpReloadRejected",
    expr=f"{total(RELOADS, REJECTED, '1h', ('job', 'instance', DECISION))} > 0",
    severity="critical",
    summary=f"{{{{ $labels.instance }}}} rejected a new certificate of {{{{ $labels.{DECISION} }}}}",
    description="{{ $value | humanize }} reloads within an hour were rejected; the old files stay in use until they "
    "expire.",
    means="""New files were validated and found wrong: key and certificate do not belong together, dates, an incomplete
chain, an empty or cut file. Everything goes on with the old files, until those expire.""",
    confirm="""The log of `aiohttp_hardened` has the reason (`KEY_VALUES_MISMATCH` and the like).
`aiohttp-hardened probe https://HOST/ --client-cert /etc/tls/tls.crt --client-key /etc/tls/tls.key` says the same of the
files as they are now.""",
    fix="""Write the certificate with its intermediates, and its key, both anew; best rename them into place. Then
reload again: one that is applied, or finds nothing changed, ends the matter.""",
)

ALERTS = (TOO_MANY_HANDSHAKES, TLS_FAILING, RESUMPTION_COLLAPSED, CERTIFICATE_EXPIRING, RELOAD_REJECTED)

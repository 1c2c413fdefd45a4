"""What to look at when a phase failed, one line per phase and word."""

from __future__ import annotations

from typing import Final

from aiohttp_hardened import Phase

_BY_WORD: Final = {
    "host_not_found": "no such name: check its spelling and the search list",
    "no_data": "the name exists and has no address: ask for its A and AAAA records",
    "server_failure": "the name server fails or cannot be reached: check /etc/resolv.conf",
    "malformed_name": "that is no name that DNS could hold",
    "connection_refused": "nothing listens on that port",
    "host_unreachable": "there is no route to that address",
    "network_unreachable": "there is no route to that network",
    "too_many_open_files": "this process has no descriptors left: ulimit -n",
    "certificate_expired": "the certificate ended: renew it on the server",
    "certificate_not_yet_valid": "the certificate has not begun: check both clocks",
    "certificate_hostname_mismatch": "the certificate is for another name",
    "certificate_authority_invalid": "nobody trusted signed it: name its authority with --ca-file",
    "protocol_version_unsupported": "no common version: TLS 1.2 is the lowest here",
    "no_shared_cipher": "no common cipher: look at the server's list",
    "plaintext_peer": "the server speaks plaintext on this port: http:// instead of https://?",
    "client_certificate_rejected": "it wants a client certificate, or another one: --client-cert",
    "peer_connection_closed": "the server hung up inside the handshake: look at its log",
    "proxy_authentication_required": "the proxy wants credentials: http://user:password@proxy",
    "proxy_rejected": "the proxy will not go there: look at its rules",
    "plaintext_after_connect": "the proxy sends bytes before TLS: do not use it",
}
_BY_PHASE: Final = {
    Phase.QUEUE: "the pool is full; the host may be fine",
    Phase.SETUP: "the connection could not be begun",
    Phase.DNS: "the name servers did not answer in time: check /etc/resolv.conf, or try --resolver",
    Phase.TCP: "the address drops packets: a firewall, or a dead host",
    Phase.TUNNEL: "the proxy did not answer CONNECT in time",
    Phase.TLS: "the server did not finish the handshake in time: overloaded, or no TLS on this port",
    Phase.REQUEST: "the connection stands; the server did not answer the request",
    Phase.BODY: "the response began and did not end",
}


def advice(phase: Phase, word: str | None) -> str:
    """Return what to look at.

    Args:
        phase: The phase that failed.
        word: Its ``error_type``.
    """
    return _BY_WORD.get(word or "", _BY_PHASE[phase])

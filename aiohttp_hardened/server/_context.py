"""What a server's context is made of: what it shows, whom it asks for a certificate, what is checked before."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp_hardened._settings import ServerTLSSettings
from aiohttp_hardened.exceptions import CertificateReloadError, SettingsError
from aiohttp_hardened.tls._files import check_pair, fingerprint, load_bundle, read, read_pair
from aiohttp_hardened.tls._reload import Built, Reloader
from aiohttp_hardened.tls._trust import STRICT, check_authorities, honour_keylog

if TYPE_CHECKING:
    from os import PathLike

    from aiohttp_hardened.tls._files import KeyPair


@dataclass(frozen=True, slots=True)
class ServerMaterial:
    """The files of a server's context, read once.

    Args:
        tls: What was asked for.
        pair: The certificate and its key.
        clients: The PEM bundle of authorities for client certificates.
        digest: Of all of it.
    """

    tls: ServerTLSSettings
    pair: KeyPair
    clients: bytes | None
    digest: str

    def build(self) -> Built:
        """Build and validate a context. Takes some milliseconds: for a thread, or for start-up.

        Raises:
            CertificateReloadError: Something in it cannot serve; with OpenSSL's reason.
        """
        tls = self.tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = tls.minimum_version
        # A client could else make a TLS 1.2 server sign again and again on one connection.
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.num_tickets = tls.tickets
        honour_keylog(context)
        if tls.alpn_protocols:
            context.set_alpn_protocols(tls.alpn_protocols)
        if self.clients is not None and tls.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | (STRICT if tls.strict else ssl.VerifyFlags(0))
            load_bundle(context, self.clients)
            check_authorities(tls.client_ca, self.clients, strict=tls.strict)
        self.pair.load_into(context)
        return Built(context, check_pair(self.pair, "server"))


def read_server(tls: ServerTLSSettings) -> ServerMaterial:
    """Read every file of a server's context once.

    Raises:
        CertificateReloadError: One cannot be read.
    """
    pair = read_pair(tls.certfile, tls.keyfile, tls.key_password)
    clients = None if tls.client_ca is None else read(tls.client_ca)
    return ServerMaterial(tls, pair, clients, fingerprint(pair.certificate, pair.key, "|", clients))


def create_server_ssl_context(  # noqa: PLR0913  # two files, and what is rarely said
    certfile: str | PathLike[str],
    keyfile: str | PathLike[str] | None = None,
    *,
    key_password: str | bytes | None = None,
    client_ca: str | PathLike[str] | None = None,
    name: str | None = None,
    minimum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2,
    alpn_protocols: tuple[str, ...] = ("http/1.1",),
    tickets: int = 2,
    strict: bool = True,
    reload_interval: float | None = None,
) -> ssl.SSLContext:
    """Return a server's context whose files can be renewed while it serves, for everything that takes a context.

    What you hold cannot be changed; ``reload_tls(context)``, SIGHUP under ``run_app``, or
    ``reload_interval`` replaces what is behind it, once the new files have passed: key and
    certificate belong together, dates, chain, a handshake in memory. A pair that does not pass
    changes nothing; it is logged with OpenSSL's reason and counted. Handshakes that have begun
    finish with the old certificate, the next ones get the new one. Tickets of before a reload
    are not taken: each client handshakes in full once, and a client whose authority was
    removed cannot come back by resumption.

    Each call builds a context (some milliseconds, at once): call it at start-up.

    Args:
        certfile: PEM file of the certificate, with its intermediates.
        keyfile: PEM file of its key; ``None`` when the key is in ``certfile``.
        key_password: Password of the key.
        client_ca: PEM file of authorities. Clients must then show a certificate that one of
            them vouches for (mutual TLS); ``request.get_extra_info("peercert")`` is what they showed.
        name: The context's name in telemetry and in the log; ``certfile`` when ``None``.
        minimum_version: The lowest protocol version that is negotiated, TLS 1.2 or 1.3.
        alpn_protocols: What is agreed to, in the order of preference; ``()``: no ALPN. A client
            that offers none of it is served without.
        tickets: TLS 1.3 tickets per full handshake; 0: TLS 1.3 clients never resume. (Under
            TLS 1.2 there is one or none, as the client asks.)
        strict: Verify client certificates as Python 3.13 does, on every Python; ``False`` is
            for old private authorities.
        reload_interval: Seconds between two looks at the files, on a thread that ends with the
            context; ``None``: no look.

    Raises:
        SettingsError: A value that cannot be meant, or files that cannot serve, with OpenSSL's reason.
    """
    # ``ServerTLSSettings`` checks that they are paths, and makes strings of them.
    tls = ServerTLSSettings(
        certfile=certfile,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        keyfile=keyfile,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        key_password=key_password,
        client_ca=client_ca,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        name=name,
        minimum_version=minimum_version,
        alpn_protocols=alpn_protocols,
        tickets=tickets,
        strict=strict,
        reload_interval=reload_interval,
    )
    reloader = Reloader(tls.name or tls.certfile, "server", lambda: read_server(tls))
    try:
        context = reloader.create()
    except CertificateReloadError as exc:
        raise SettingsError(f"{_fields(tls)}: {exc}") from exc
    if tls.reload_interval is not None:
        reloader.watch(tls.reload_interval)
    return context


def _fields(tls: ServerTLSSettings) -> str:
    fields = [f"server.certfile={tls.certfile!r}"]
    fields += [f"server.keyfile={tls.keyfile!r}"] if tls.keyfile is not None else []
    fields += [f"server.client_ca={tls.client_ca!r}"] if tls.client_ca is not None else []
    return ", ".join(fields)

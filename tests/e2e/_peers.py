"""TLS peers in processes and threads of their own: two that nobody here wrote, and one that takes its time."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator

    from aiohttp_hardened.testing import CertificateFiles

SECONDS_TO_START: Final = 10.0

NGINX_CONFIG: Final = """
daemon off;
master_process off;
pid {directory}/pid;
error_log stderr emerg;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory};
    proxy_temp_path {directory};
    fastcgi_temp_path {directory};
    uwsgi_temp_path {directory};
    scgi_temp_path {directory};
    server {{
        listen 127.0.0.1:{port} ssl reuseport;
        ssl_certificate {certificate.cert_file};
        ssl_certificate_key {certificate.key_file};
        ssl_client_certificate {client_ca};
        ssl_verify_client on;
        ssl_protocols {protocol};
        return 200 "hello\\n";
    }}
}}
"""


@contextmanager
def openssl_server(certificate: CertificateFiles, client_ca: Path, version: str) -> Generator[str]:
    """Run ``openssl s_server``, which refuses a client without a certificate by an alert; give its URL.

    Args:
        certificate: What it shows.
        client_ca: Whose client certificates it takes.
        version: ``1.2`` or ``1.3``.
    """
    command = ["openssl", "s_server", "-accept", "127.0.0.1:0", "-www", f"-tls{version.replace('.', '_')}"]
    command += ["-cert", str(certificate.cert_file), "-key", str(certificate.key_file)]
    command += ["-CAfile", str(client_ca), "-Verify", "1", "-verify_return_error"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        while not (line := _line(process.stdout.fileno())).startswith("ACCEPT "):
            assert process.poll() is None, "openssl s_server has ended"
        yield f"https://{line.removeprefix('ACCEPT ').strip()}/"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def nginx(certificate: CertificateFiles, client_ca: Path, version: str) -> Generator[str]:
    """Run nginx, which tells a client without a certificate by a 400; give its URL.

    Args:
        certificate: What it shows.
        client_ca: Whose client certificates it takes.
        version: ``1.2`` or ``1.3``.
    """
    binary = which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert binary is not None, "nginx is missing: apt-get install nginx"
    with tempfile.TemporaryDirectory(prefix="nginx-") as directory, socket.socket() as port_holder:
        # Bound and not listening: nobody but nginx, which says reuseport too, can take the port meanwhile.
        port_holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port_holder.bind(("127.0.0.1", 0))
        port = port_holder.getsockname()[1]
        config = Path(directory, "nginx.conf")
        config.write_text(
            NGINX_CONFIG.format(
                directory=directory, port=port, certificate=certificate, client_ca=client_ca, protocol=f"TLSv{version}"
            )
        )
        command = [binary, "-c", str(config), "-p", directory, "-e", "stderr"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until_it_listens(process, port)
            yield f"https://127.0.0.1:{port}/"
        finally:
            process.kill()
            process.wait()


@contextmanager
def slow_handshake(context: ssl.SSLContext, seconds: float) -> Generator[str]:
    """Serve one request, a while after its connection was accepted; give the URL.

    Args:
        context: The server's.
        seconds: Between the connection and the handshake.
    """

    def serve() -> None:
        connection, _ = listener.accept()
        time.sleep(seconds)
        with connection, context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(65536)
            secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nlate\n")
            secured.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS_TO_START)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            thread.join()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert process.poll() is None, "nginx has ended"
            assert time.monotonic() < until, "nginx did not start"
            time.sleep(0.01)
        else:
            return


def _line(descriptor: int) -> str:
    """Read one line, which must come soon."""
    line, until = b"", time.monotonic() + SECONDS_TO_START
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
        assert ready, "the server did not start"
        byte = os.read(descriptor, 1)
        if not byte:
            break
        line += byte
    return line.decode()

"""Resumption and client certificates against nginx."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened.tls._tickets import REFUSALS_TO_QUIET, tickets
from tests.tls._raw import ask, shared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aiohttp_hardened.testing import ThrowawayCA

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None, reason="no nginx"
)

PROTOCOLS = ["TLSv1.2", "TLSv1.3"]

CONFIGURATION = """
daemon off; master_process {master}; worker_processes {workers};
pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 128; }}
http {{
    access_log off;
    client_body_temp_path {directory}/a; proxy_temp_path {directory}/b; fastcgi_temp_path {directory}/c;
    uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols {protocol};
        {options}
        location / {{ return 200 "$ssl_session_reused $ssl_client_s_dn"; }}
    }}
}}
"""


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    """Begin with no tickets; and with no memory of peers without any."""
    tickets.forget_all()
    yield
    tickets.forget_all()


@asynccontextmanager
async def nginx(
    directory: Path, ca: ThrowawayCA, protocol: str, options: str, *, master: bool = False, workers: int = 1
) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """Run nginx; give its port and its process."""
    certificate = ca.issue("x.test", intermediate=True)
    # nginx tells nobody which port it was given, so it is told one that was free just now.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = directory / "nginx.conf"
    configuration.write_text(
        CONFIGURATION.format(
            directory=directory, port=port, protocol=protocol, options=options, master="on" if master else "off",
            workers=workers, certificate=certificate.cert_file, key=certificate.key_file,
        )
    )  # fmt: skip
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    process = await asyncio.create_subprocess_exec(
        program or "nginx", "-c", str(configuration), "-p", str(directory),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            await asyncio.sleep(0.02)
        yield port, process
    finally:
        process.terminate()
        await process.wait()


async def resumed(context: Any, port: int, count: int) -> list[bool]:
    return [(await ask(context, port)).resumed for _ in range(count)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ("ssl_session_tickets on;", {"TLSv1.2": 1, "TLSv1.3": 4}),
        ("ssl_session_tickets off; ssl_session_cache shared:SSL:1m;", {"TLSv1.2": 1, "TLSv1.3": 4}),
    ],
)
async def test_it_resumes(
    options: str, reads: dict[str, int], protocol: str, tmp_path: Path, throwaway_ca: ThrowawayCA
) -> None:
    """With tickets, and with a session cache in their place."""
    async with nginx(tmp_path, throwaway_ca, protocol, options) as (port, _):
        assert await resumed(shared(throwaway_ca), port, 4) == [False, True, True, True]
    assert tickets.reads == reads[protocol]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_its_workers_share_a_ticket_key(protocol: str, tmp_path: Path, throwaway_ca: ThrowawayCA) -> None:
    """Whichever of several workers answers, it knows the tickets of the others, as a fleet with one key file does."""
    key = tmp_path / "ticket.key"
    key.write_bytes(os.urandom(80))
    options = f"ssl_session_ticket_key {key}; add_header worker $pid always;"
    async with nginx(tmp_path, throwaway_ca, protocol, options, master=True, workers=3) as (port, _):
        context, workers = shared(throwaway_ca), set[bytes]()
        for number in range(60):
            answer = await ask(context, port)
            assert answer.resumed == (number > 0)
            workers |= {line for line in answer.text.splitlines() if line.startswith(b"worker: ")}
            if len(workers) > 1:
                break
    assert len(workers) > 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_one_that_resumes_nothing_is_left_alone(protocol: str, tmp_path: Path, throwaway_ca: ThrowawayCA) -> None:
    """Neither tickets nor a cache: no errors, and after a few connections no cost."""
    async with nginx(tmp_path, throwaway_ca, protocol, "ssl_session_tickets off; ssl_session_cache off;") as (port, _):
        assert not any(await resumed(shared(throwaway_ca), port, 6))
    assert tickets.reads <= REFUSALS_TO_QUIET
    assert len(tickets) == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_its_ticket_keys_are_rotated(protocol: str, tmp_path: Path, throwaway_ca: ThrowawayCA) -> None:
    """A key that is gone costs one full handshake per ticket in flight; the next ones are resumed."""
    key = tmp_path / "ticket.key"
    key.write_bytes(os.urandom(80))
    options = f"ssl_session_ticket_key {key};"
    context = shared(throwaway_ca)
    async with nginx(tmp_path, throwaway_ca, protocol, options, master=True) as (port, process):
        assert await resumed(context, port, 3) == [False, True, True]
        key.write_bytes(os.urandom(80))
        process.send_signal(signal.SIGHUP)
        answers: list[bool] = []
        for _ in range(200):
            answers += await resumed(context, port, 1)
            if not answers[-1]:
                break
            await asyncio.sleep(0.02)
        # While the old worker goes, either may answer.
        await asyncio.sleep(0.3)
        await resumed(context, port, 2)
        assert await resumed(context, port, 3) == [True, True, True]
    assert answers.count(False) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_it_asks_for_a_client_certificate(protocol: str, tmp_path: Path, throwaway_ca: ThrowawayCA) -> None:
    """The certificate is shown, and a resumed connection is the same client's."""
    client = throwaway_ca.issue_client("orders")
    options = f"ssl_verify_client on; ssl_client_certificate {throwaway_ca.ca_file}; ssl_session_cache shared:SSL:1m;"
    known = shared(throwaway_ca, client_cert=str(client.cert_file), client_key=str(client.key_file))
    async with nginx(tmp_path, throwaway_ca, protocol, options) as (port, _):
        answers = [await ask(known, port) for _ in range(3)]
        assert [each.resumed for each in answers] == [False, True, True]
        assert all(b"CN=orders" in each.text for each in answers)
        assert b"400" in (await ask(shared(throwaway_ca), port)).text

"""A real Prometheus that scrapes a real process, on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.dashboards._otlp import Collector
from tests.dashboards._promtool import RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
PROMETHEUS = shutil.which("prometheus")
SECONDS_TO_START = 30.0


class Prometheus:
    """The API of a Prometheus.

    Args:
        address: Host and port.
    """

    def __init__(self, address: str) -> None:
        self._api = f"http://{address}/api/v1"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query."""
        return self.get("query", query=expression)["result"]

    def get(self, what: str, **parameters: Any) -> Any:
        """Return what the API says.

        Raises:
            ValueError: It refuses, with its words.
        """
        try:
            address = f"{self._api}/{what}?{urllib.parse.urlencode(parameters)}"
            with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310  (it is http)
                return json.load(answer)["data"]
        except urllib.error.HTTPError as exc:
            with exc:
                raise ValueError(json.load(exc)["error"]) from None


@contextmanager
def running(directory: Path) -> Iterator[Prometheus]:
    """Run traffic, a collector, and a Prometheus that scrapes both each second.

    Jobs are ``scraped`` and ``pushed``.

    Args:
        directory: For the data of Prometheus.
    """
    with Collector() as collector:
        served = free_port()
        with _traffic(served, collector.address):
            config = directory / "prometheus.yml"
            config.write_text(json.dumps(_config(served, collector.address)), "utf-8")
            with _prometheus(config, directory / "data") as prometheus:
                yield prometheus


def _config(served: int, collector: str) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": "scraped", "static_configs": [{"targets": [f"127.0.0.1:{served}"]}]},
            {"job_name": "collector", "honor_labels": True, "static_configs": [{"targets": [collector]}]},
        ],
    }


@contextmanager
def _traffic(served: int, collector: str) -> Iterator[None]:
    environment = {
        "OTEL_SERVICE_NAME": "pushed",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "prometheus,otlp",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://{collector}/v1/metrics",
        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(served),
    }
    command = [sys.executable, "-m", "tests.dashboards._traffic"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | environment,
    )
    try:
        _wait_until_it_listens(process, served)
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            # How fast it ends is nobody's claim: on a busy machine its servers and threads take their time.
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
        finally:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


@contextmanager
def _prometheus(config: Path, data: Path) -> Iterator[Prometheus]:
    assert PROMETHEUS is not None
    port = free_port()
    command = [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={data}", "--log.level=error"]
    process = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _wait_until_it_listens(process, port, "/-/ready")
        yield Prometheus(f"127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, path: str = "/metrics") -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).close()
        except OSError:  # a 503 of one that is not ready yet, too
            if process.poll() is not None:
                assert process.stderr is not None
                raise RuntimeError(process.stderr.read().decode()[-3000:]) from None
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"nothing answers on port {port} after {SECONDS_TO_START:.0f} s")


def free_port() -> int:
    """Return a port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

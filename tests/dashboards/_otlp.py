"""The OTLP road: what a collector, or Prometheus' own OTLP receiver, makes of what the exporter sends.

The distribution's Prometheus may be older than its OTLP receiver (2.47). The payload here is what the real exporter
sends; how it is translated follows the rules that both document as their default
(https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/, and
``translation_strategy: UnderscoreEscapingWithSuffixes`` in https://prometheus.io/docs/guides/opentelemetry/). It shares
no code with the names in the dashboards.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")

CUMULATIVE = 2
# "Conversion of unit" in the specification; a unit in braces, and 1, add nothing.
UNITS = {"s": "seconds", "ms": "milliseconds", "By": "bytes", "%": "percent"}

Sample = tuple[str, dict[str, str], float]


class Collector:
    """Takes OTLP over HTTP, and serves for Prometheus what it becomes."""

    def __init__(self) -> None:
        self._latest: Any = None
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/metrics":
                    collector._latest = service.ExportMetricsServiceRequest.FromString(body)
                self._answer(b"", "application/x-protobuf")

            def do_GET(self) -> None:
                text = "" if collector._latest is None else exposition(collector._latest)
                self._answer(text.encode(), "text/plain; version=0.0.4")

            def _answer(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(ConnectionError):  # a scrape that took too long
                    self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def exposition(request: Any) -> str:
    """Return metrics in Prometheus' text format."""
    lines = []
    for resource in request.resource_metrics:
        attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
        target = {"job": attributes["service.name"], "instance": attributes["service.instance.id"]}
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                samples = list(_samples(metric))
                lines += [_line(name, target | labels, value) for name, labels, value in samples]
    return "\n".join(lines) + "\n"


def _samples(metric: Any) -> list[Sample]:
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    name = metric_name(metric.name, metric.unit, monotonic=kind == "sum" and data.is_monotonic)
    if kind in ("sum", "histogram"):
        assert CUMULATIVE == data.aggregation_temporality, "Prometheus takes no deltas"
    if kind == "histogram":
        return [sample for point in data.data_points for sample in _histogram(name, point)]
    return [(name, _labels(point), point.as_double or float(point.as_int)) for point in data.data_points]


def _histogram(name: str, point: Any) -> list[Sample]:
    labels = _labels(point)
    found: list[Sample] = [(f"{name}_count", labels, point.count), (f"{name}_sum", labels, point.sum)]
    below = 0
    for edge, count in zip([*point.explicit_bounds, math.inf], point.bucket_counts, strict=True):
        below += count
        # As Go writes a float: 1, not 1.0.
        found.append((f"{name}_bucket", labels | {"le": "+Inf" if edge == math.inf else f"{edge:g}"}, below))
    return found


def metric_name(name: str, unit: str, *, monotonic: bool) -> str:
    """Return the name that a metric gets."""
    tokens = [token for token in re.split(r"[^a-zA-Z0-9:]", name) if token]
    suffix = UNITS.get(re.sub(r"\{.*\}", "", unit), "")
    if suffix and suffix not in tokens:
        tokens.append(suffix)
    if monotonic:
        tokens = [token for token in tokens if token != "total"] + ["total"]
    return "_".join(tokens)


def _labels(point: Any) -> dict[str, str]:
    return {re.sub(r"[^a-zA-Z0-9_]", "_", each.key): _text(each.value) for each in point.attributes}


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return json.dumps(found) if kind == "bool_value" else str(found)


def _line(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f"{key}={json.dumps(text)}" for key, text in labels.items())
    return f"{name}{{{inside}}} {value}"

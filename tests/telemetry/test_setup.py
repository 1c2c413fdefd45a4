from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap

import pytest

KINDS = """
    import sys
    from opentelemetry import metrics, trace
    from aiohttp_hardened import telemetry
    def kinds():
        return type(trace.get_tracer_provider()).__module__, type(metrics.get_meter_provider()).__module__
"""
SDK = ("opentelemetry.sdk.trace", "opentelemetry.sdk.metrics._internal")


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter that has no providers yet."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(KINDS) + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path), **environment},
    )


def output(script: str, **environment: str) -> list[str]:
    done = run(script, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


NONE = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}


def test_importing_telemetry_imports_no_sdk() -> None:
    """Only who calls ``setup()`` pays for the SDK."""
    assert output("print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])") == ["[]"]


def test_an_application_without_providers_gets_the_sdks() -> None:
    """Both global providers are the SDK's, and a second call leaves them."""
    script = """
    telemetry.setup()
    first = trace.get_tracer_provider(), metrics.get_meter_provider()
    print(kinds())
    telemetry.setup()
    print((trace.get_tracer_provider(), metrics.get_meter_provider()) == first)
    """
    assert output(script, **NONE) == [str(SDK), "True"]


def test_a_provider_that_is_set_is_left_alone() -> None:
    """Each signal is looked at by itself."""
    script = """
    from opentelemetry.sdk.trace import TracerProvider
    mine = TracerProvider()
    trace.set_tracer_provider(mine)
    telemetry.setup()
    print(trace.get_tracer_provider() is mine, kinds()[1])
    """
    assert output(script, **NONE) == [f"True {SDK[1]}"]


def test_a_disabled_sdk_is_not_set_up() -> None:
    """``OTEL_SDK_DISABLED`` means the API's own no-ops."""
    script = "telemetry.setup(); print('sdk' in ' '.join(kinds()))"
    assert output(script, OTEL_SDK_DISABLED="true") == ["False"]


def test_the_resource_names_service_and_instance() -> None:
    """Every process is an instance of its own; the environment's attributes and the call's are there."""
    script = """
    telemetry.setup(deployment_environment_name="test")
    import json
    print(json.dumps(dict(trace.get_tracer_provider().resource.attributes)))
    print(trace.get_tracer_provider().resource == metrics.get_meter_provider()._sdk_config.resource)
    """
    environment = {**NONE, "OTEL_SERVICE_NAME": "shop", "OTEL_RESOURCE_ATTRIBUTES": "a.b=c"}
    line, same = output(script, **environment)
    attributes = json.loads(line)
    assert (attributes["service.name"], attributes["a.b"], attributes["deployment.environment.name"]) == (
        "shop",
        "c",
        "test",
    )
    other = json.loads(output(script, **environment)[0])
    assert len(attributes["service.instance.id"]) == 36
    assert attributes["service.instance.id"] != other["service.instance.id"]
    assert same == "True"
    named = json.loads(output(script, **NONE, OTEL_RESOURCE_ATTRIBUTES="service.instance.id=seven")[0])
    assert named["service.instance.id"] == "seven"


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            "ValueError: OTEL_TRACES_EXPORTER names 'zipkin'; setup() knows otlp, console",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "statsd"},
            "ValueError: OTEL_METRICS_EXPORTER names 'statsd'; setup() knows otlp, console, prometheus and none",
        ),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "ValueError: OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'; setup() knows http/protobuf and grpc",
        ),
    ],
)
def test_an_unknown_exporter_is_refused(environment: dict[str, str], error: str) -> None:
    """What cannot be meant is refused by name, and nothing is half set up."""
    script = """
    try:
        telemetry.setup()
    except ValueError as exc:
        print(f"ValueError: {exc}")
    print('sdk' in ' '.join(kinds()))
    """
    told, half = output(script, **environment)
    assert told.startswith(error)
    assert half == "False"


@pytest.mark.parametrize(
    ("protocol", "hint"), [("http/protobuf", "aiohttp-hardened[otlp]"), ("grpc", "otlp-proto-grpc")]
)
def test_a_missing_exporter_is_named(protocol: str, hint: str) -> None:
    """Without the extra the error says what to install, and nothing is half set up."""
    script = """
    sys.modules["opentelemetry.exporter.otlp"] = None
    try:
        telemetry.setup()
    except ModuleNotFoundError as exc:
        print(exc)
    print('sdk' in ' '.join(kinds()))
    """
    told, half = output(script, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    assert hint in told
    assert half == "False"


def test_prometheus_is_served_until_shutdown() -> None:
    """Metrics are served where the standard variables say, with our edges, until the provider shuts down."""
    pytest.importorskip("opentelemetry.exporter.prometheus")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = f"""
    import threading, urllib.request
    telemetry.setup()
    hook = telemetry.MetricHook()
    from tests.telemetry._driving import Driven
    from aiohttp_hardened.timing._hooks import Hooks
    driven = Driven()
    driven.hooks = Hooks((hook,))
    driven.get()
    text = urllib.request.urlopen("http://127.0.0.1:{port}/metrics").read().decode()
    print('http_client_request_duration_seconds_bucket' in text, 'le="0.0005"' in text)
    print('aiohttp_client_dns_cache_lookups_total{{' in text)
    metrics.get_meter_provider().shutdown()
    driven.close()
    print([thread.name for thread in threading.enumerate() if thread is not threading.main_thread()])
    """
    environment = {
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "prometheus",
        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(port),
    }
    assert output(script, **environment) == ["True True", "True", "[]"]


def test_spans_and_metrics_go_to_the_console_when_asked() -> None:
    """``console`` is the standard word for looking at it once."""
    script = """
    telemetry.setup()
    from aiohttp_hardened import DEFAULTS
    from aiohttp_hardened.telemetry._defaults import default_hooks
    from tests.telemetry._driving import Driven
    from aiohttp_hardened.timing._hooks import Hooks
    driven = Driven()
    driven.hooks = Hooks(default_hooks(DEFAULTS.telemetry))
    driven.get()
    driven.close()
    trace.get_tracer_provider().shutdown()
    metrics.get_meter_provider().shutdown()
    """
    out = "\n".join(output(script, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="console"))
    assert '"name": "connection setup"' in out
    assert '"name": "http.client.request.duration"' in out


def test_each_signal_has_its_own_protocol() -> None:
    """The signal's own variable wins over the general one."""
    script = """
    try:
        telemetry.setup()
    except ValueError as exc:
        print(exc)
    """
    told = output(
        script, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="carrier-pigeon", OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf"
    )
    assert "carrier-pigeon" in told[0]

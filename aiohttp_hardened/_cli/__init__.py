"""The command line: ``aiohttp-hardened demo``, ``probe``, ``dashboards`` and ``doctor``.

It is a hook like any other and uses nothing but the public names of the package.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130
_HIGHEST_PORT: Final = 65535

_JSON_FIELDS: Final = """\
--json prints one document; durations are seconds (_s), times nanoseconds since
the epoch (_ns):
  ok         whether all went well, as the exit status says
  probes     one per request:
    url, ok, status
    failure    null, or: phase, error_type, meaning, look_at, message
    attempts   one per send; redirect hops and retries are sends of their own:
      method, url, status, reused, resend_count
      phases     phase, start_ns, duration_s, server_address, server_port,
                 error_type, cancelled, attributes, events (name, time_ns,
                 attributes)
  summaries  one per URL:
    url, requests, ok, reused
    phases     by name: count, min_s, median_s, max_s
Fields may be added; these keep their names and meanings.
"""

_DOCTOR: Final = """\
Say in words what is wrong with a process's connections, with evidence and a fix.

Counters only grow, so one look judges all since the process started: what
happened once is named until it restarts. Ask with --interval whether it still
happens. Gauges (contexts, certificates, the executor) are judged as they are;
of two looks, both must show jobs that wait, and contexts are named when they grow.

Exit status: 0 when nothing is wrong; 1 with findings; 2 when SOURCE cannot be
read or holds nothing of aiohttp-hardened; 130 on Ctrl-C.
"""
_DOCTOR_JSON: Final = """\
--json prints one document; fields may be added:
  healthy    whether there is no finding
  source     what was read
  judged     "totals", "interval" or "probe"
  looked_at  requests, setups, lookups: how many there were
  findings   name, title, error_type, evidence (lines), figures (the same as
             numbers, one object per line), fix
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status.

    Args:
        argv: Arguments without the program's name; ``None``: the process's own.
    """
    arguments = _parser().parse_args(argv)
    missing = [name for name in arguments.needs if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"aiohttp-hardened {arguments.command} needs {' and '.join(missing)}: pip install 'aiohttp-hardened[demo]'",
            file=sys.stderr,
        )
        return _USAGE
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough. What is still buffered must go somewhere when the interpreter ends
        # (https://docs.python.org/3/library/signal.html#note-on-sigpipe).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aiohttp-hardened", description="See where the time of a connection goes: DNS, TCP, tunnel, TLS."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_probe(commands)
    _add_dashboards(commands)
    _add_doctor(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="watch good and bad requests, on this machine alone",
        description="Start TLS servers and a name server on loopback, make requests that go well and badly, and "
        "draw where the time of each went. The exit status is 0 when each ended as announced.",
    )
    demo.add_argument(
        "--metrics-port",
        type=_port,
        metavar="PORT",
        help="then repeat the requests, and serve their metrics for Prometheus on 127.0.0.1 (0: any free port)",
    )
    demo.add_argument(
        "--duration",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long to repeat them, with --metrics-port (default: 60)",
    )
    demo.set_defaults(needs=("rich", "trustme"), run=_run_demo)


def _add_probe(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    probe = commands.add_parser(
        "probe",
        help="look at an endpoint of yours",
        description="Request URLs (GET, redirects followed) and draw where the time went.\n\n"
        "Exit status: 0 when every request ended with a status below 400; 1 when one did\n"
        "not, or failed on the way; 2 when the arguments are wrong; 130 on Ctrl-C.",
        epilog=_JSON_FIELDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    probe.add_argument("urls", nargs="+", metavar="URL", help="http:// or https://")
    probe.add_argument("-n", type=_count, default=1, metavar="TIMES", help="how often to request each (default: 1)")
    probe.add_argument("--json", action="store_true", help="print one JSON document; its fields are below")
    probe.add_argument(
        "--ca-file",
        action="append",
        default=[],
        metavar="PEM",
        help="trust these authorities instead of certifi's; repeatable",
    )
    probe.add_argument("--client-cert", metavar="PEM", help="certificate to show to the server")
    probe.add_argument("--client-key", metavar="PEM", help="its key, when it is not in the same file")
    probe.add_argument("--proxy", metavar="URL", help="go through this proxy: http://[USER:PASSWORD@]HOST:PORT")
    probe.add_argument(
        "--resolver",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help='ask this name server, repeatable; or "system": the system\'s own resolver',
    )
    probe.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="for each request in all (default: 300)")
    probe.set_defaults(needs=("rich",), run=_run_probe)


def _add_dashboards(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    dashboards = commands.add_parser(
        "dashboards",
        help="export Grafana dashboards, Prometheus rules and their runbook",
        description="Export Grafana dashboards, Prometheus recording and alerting rules, and a runbook with a section "
        "for each alert. Without --output, list them.",
    )
    dashboards.add_argument("--list", action="store_true", help="list the files, and write none")
    dashboards.add_argument("--output", metavar="DIR", help="write them here; the directory is made if need be")
    dashboards.add_argument(
        "--datasource",
        metavar="UID",
        help="of the Prometheus data source in Grafana (default: chosen in each dashboard)",
    )
    dashboards.add_argument(
        "--road",
        choices=("prometheus", "otlp"),
        default="prometheus",
        help="how metrics reach Prometheus: it scrapes the process, or the process pushes OTLP to a collector or to "
        "Prometheus, once a minute (default: prometheus). Names are the same on both.",
    )
    dashboards.set_defaults(needs=(), run=_run_dashboards)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="name what is wrong, from metrics or a finished probe",
        description=_DOCTOR,
        epilog=_DOCTOR_JSON,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument(
        "source",
        metavar="SOURCE",
        help="the URL of a metrics endpoint (http://127.0.0.1:9464/metrics); or a file, or - for standard input, "
        "with what such an endpoint or `probe --json` said",
    )
    doctor.add_argument(
        "--interval", type=_seconds, metavar="SECONDS", help="look twice at an endpoint, and judge what came between"
    )
    doctor.add_argument("--ca-file", metavar="PEM", help="trust these authorities instead of certifi's for SOURCE")
    doctor.add_argument("--json", action="store_true", help="print one JSON document; its fields are below")
    doctor.set_defaults(needs=("rich",), run=_run_doctor)


def _run_demo(arguments: argparse.Namespace) -> int:
    from aiohttp_hardened._cli import _demo  # noqa: PLC0415  (what it needs may be missing)

    return _demo.run(arguments)


def _run_probe(arguments: argparse.Namespace) -> int:
    from aiohttp_hardened._cli import _probe  # noqa: PLC0415  (what it needs may be missing)

    return _probe.run(arguments)


def _run_dashboards(arguments: argparse.Namespace) -> int:
    from aiohttp_hardened._cli import _dashboards  # noqa: PLC0415  (as the others)

    return _dashboards.run(arguments)


def _run_doctor(arguments: argparse.Namespace) -> int:
    from aiohttp_hardened._cli import _doctor  # noqa: PLC0415  (what it needs may be missing)

    return _doctor.run(arguments)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; it must be 0 to {_HIGHEST_PORT}")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no count; it must be 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; it must be a number of seconds above 0")
    return value

"""The command line: ``aiohttp-hardened demo`` and ``aiohttp-hardened probe``.

It is a hook like any other and uses nothing but the public names of the package.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status.

    Args:
        argv: Arguments without the program's name; ``None``: the process's own.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    missing = [name for name in arguments.needs if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"aiohttp-hardened {arguments.command} needs {', '.join(missing)}: pip install 'aiohttp-hardened[demo]'",
            file=sys.stderr,
        )
        return USAGE
    try:
        if arguments.command == "demo":
            from aiohttp_hardened._cli import _demo  # noqa: PLC0415  (its extras may be missing)

            return _demo.run(arguments)
        from aiohttp_hardened._cli import _probe  # noqa: PLC0415

        return _probe.run(arguments)
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aiohttp-hardened", description="See where the time of a connection goes: DNS, TCP, tunnel, TLS."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_demo(commands)
    _add_probe(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="watch good and bad requests, on this machine alone",
        description="Start a TLS server and a name server on loopback, make requests that go well and badly, "
        "and draw where the time of each went.",
    )
    demo.add_argument("--metrics-port", type=_port, metavar="PORT", help="go on, and serve the metrics for Prometheus")
    demo.add_argument(
        "--duration", type=_seconds, default=60.0, metavar="SECONDS", help="how long to go on (default: 60)"
    )
    demo.set_defaults(needs=("rich", "trustme"))


def _add_probe(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    probe = commands.add_parser(
        "probe",
        help="look at an endpoint of yours",
        description="Request URLs and draw where the time went. The exit status is 0 only when every response came "
        "and had a status below 400; 1 when something failed; 2 when the arguments are wrong.",
    )
    probe.add_argument("urls", nargs="+", metavar="URL", help="http:// or https://")
    probe.add_argument("-n", type=_count, default=1, metavar="TIMES", help="how often to request each (default: 1)")
    probe.add_argument("--json", action="store_true", help="print one JSON document instead")
    probe.add_argument("--ca-file", action="append", default=[], metavar="PEM", help="trust this authority alone")
    probe.add_argument("--client-cert", metavar="PEM", help="show this certificate")
    probe.add_argument("--client-key", metavar="PEM", help="its key, when it is not in the same file")
    probe.add_argument("--proxy", metavar="URL", help="go through this proxy")
    probe.add_argument(
        "--resolver",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help='ask this name server; "system": the system\'s resolver',
    )
    probe.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="for each request in all (default: 300)")
    probe.set_defaults(needs=("rich",))


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:  # noqa: PLR2004  (TCP's)
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value

"""The waterfall for endpoints of the user's own."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import aiohttp
from rich.progress import Progress
from rich.text import Text
from yarl import URL

from aiohttp_hardened import (
    DNSSettings,
    HardenedError,
    Phase,
    Settings,
    TimeoutSettings,
    TLSSettings,
    create_session,
    create_ssl_context,
)
from aiohttp_hardened._cli._console import make_console
from aiohttp_hardened._cli._failure import Failure, failure_of, without_secrets
from aiohttp_hardened._cli._report import Probe, as_json, show
from aiohttp_hardened._cli._waterfall import WaterfallHook, shown_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

_FIRST_ERROR: Final = 400
_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130


def run(arguments: argparse.Namespace) -> int:
    """Probe the URLs; return 0 only when all went well.

    Args:
        arguments: What ``probe --help`` lists.
    """
    errors = make_console(stderr=True)
    try:
        urls = [_url(text) for text in arguments.urls]
        proxy = None if arguments.proxy is None else _url(arguments.proxy)
        settings = _settings(arguments)
        if any(url.scheme == "https" for url in (*urls, *((proxy,) if proxy else ()))):
            # Wrong files are wrong arguments, and loading trust is no part of what is probed.
            create_ssl_context(settings.tls)
    except ValueError as exc:
        errors.print(Text(f"aiohttp-hardened probe: {without_secrets(str(exc))}"), soft_wrap=True)
        return _USAGE
    probes: list[Probe] = []
    status = 0
    try:
        asyncio.run(_probe(settings, urls * arguments.n, proxy, probes, None if arguments.json else errors))
    except KeyboardInterrupt:
        status = _INTERRUPTED
    if status == 0 and not all(each.ok for each in probes):
        status = _FAILED
    if arguments.json:
        print(json.dumps(as_json(probes, ok=status == 0), indent=2), flush=True)
    else:
        show(make_console(), probes)
    return status


def _settings(arguments: argparse.Namespace) -> Settings:
    servers = tuple(each for each in arguments.resolver if each != "system")
    system = len(servers) < len(arguments.resolver)
    return Settings(
        dns=DNSSettings(resolver="system" if system else "aiodns", nameservers=servers),
        timeouts=TimeoutSettings() if arguments.timeout is None else TimeoutSettings(total=arguments.timeout),
        tls=TLSSettings(
            trust="none" if arguments.ca_file else "certifi",
            ca_files=tuple(arguments.ca_file),
            client_cert=arguments.client_cert,
            client_key=arguments.client_key,
        ),
    )


def _url(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError as exc:
        raise ValueError(f"{text!r} is no URL: {exc}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{text!r} is no URL that begins with http:// or https:// and names a host")
    return url


async def _probe(
    settings: Settings, urls: Sequence[URL], proxy: URL | None, probes: list[Probe], console: Console | None
) -> None:
    hook = WaterfallHook()
    quiet = console is None or not console.is_terminal or len(urls) == 1
    # The body is thrown away as it comes, so it need not be unpacked.
    async with create_session(settings, hooks=[hook], auto_decompress=False) as session:
        with Progress(console=console, transient=True, disable=quiet) as progress:
            task = progress.add_task("probing", total=len(urls))
            for url in urls:
                probes.append(await _request(session, url, proxy, hook))
                progress.advance(task)


async def _request(session: aiohttp.ClientSession, url: URL, proxy: URL | None, hook: WaterfallHook) -> Probe:
    status: int | None = None
    raised: Exception | None = None
    try:
        async with session.get(url, proxy=proxy) as response:
            status = response.status
            async for _ in response.content.iter_any():
                pass
    except (aiohttp.ClientError, HardenedError, OSError, ValueError) as exc:
        raised = exc
    waterfalls = hook.take()
    if raised is not None:
        failure: Failure | None = failure_of(raised, waterfalls)
    else:
        failure = None if status is None or status < _FIRST_ERROR else Failure(Phase.REQUEST, str(status))
    return Probe(shown_url(url), status, failure, waterfalls)

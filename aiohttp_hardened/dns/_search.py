"""Under which names a name is asked for (resolv.conf(5): ``search``, ``options ndots``).

A and AAAA are two questions to c-ares, and it would walk the search list for each by
itself: a name with an IPv4 address of its own could then get the IPv6 address that a
wildcard in a search domain has for everybody. So it is walked here, with both at once,
and c-ares is asked for complete names only.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

_CONFIGURATION: Final = Path("/etc/resolv.conf")
_MOST_DOTS: Final = 15
_LONGEST_NAME: Final = 254
"""RFC 1035, section 2.3.4, written with a trailing dot."""

Stamp = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class SearchList:
    """Domains that are put behind a name.

    Args:
        domains: In their order.
        ndots: A name with so many dots is asked for as it is before the domains.
    """

    domains: tuple[str, ...] = ()
    ndots: int = 1

    def names(self, host: str) -> tuple[str, ...]:
        """Return the complete names to ask for, one after the other, each with its trailing dot.

        Args:
            host: A trailing dot says that it is complete.
        """
        if host.endswith("."):
            return (host,)
        complete = f"{host}."
        longer = tuple(name for each in self.domains if len(name := f"{host}.{each}.") <= _LONGEST_NAME)
        return (complete, *longer) if host.count(".") >= self.ndots else (*longer, complete)


def names_to_ask_for(host: str) -> tuple[str, ...]:
    """Return the names that stand for a name on this system.

    macOS and Windows keep their search list where only c-ares looks; it walks it there.
    """
    if sys.platform in ("darwin", "win32"):
        return (host,)
    environment = (os.environ.get("LOCALDOMAIN"), os.environ.get("RES_OPTIONS"))
    return _read(_CONFIGURATION, configuration_stamp(), *environment).names(host)


def configuration_stamp() -> Stamp:
    """Return what changes with the system's configuration; ``None``: there is none."""
    try:
        status = _CONFIGURATION.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


@lru_cache(maxsize=4)
def _read(path: Path, stamp: Stamp, local_domain: str | None, options: str | None) -> SearchList:
    text = ""
    if stamp is not None:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
    return parse(text, local_domain, options)


def parse(text: str, local_domain: str | None = None, options: str | None = None) -> SearchList:
    """Read a resolv.conf; of ``search`` and ``domain`` the last one counts.

    Args:
        text: What stands in it.
        local_domain: The environment's ``LOCALDOMAIN``, which is stronger.
        options: The environment's ``RES_OPTIONS``, which are stronger.
    """
    domains: list[str] | None = None
    ndots = 1
    for line in text.splitlines():
        key, *values = line.split() or [""]
        if key == "search" or (key == "domain" and values):
            domains = values if key == "search" else values[:1]
        elif key == "options":
            ndots = _ndots(values, ndots)
    if local_domain is not None:
        domains = local_domain.split()
    if domains is None:
        domains = [socket.gethostname().partition(".")[2]]
    kept = (domain.strip(".") for domain in domains)
    return SearchList(tuple(filter(None, kept)), _ndots((options or "").split(), ndots))


def _ndots(options: list[str], otherwise: int) -> int:
    for option in options:
        name, _, value = option.partition(":")
        if name == "ndots" and value.isdecimal():
            otherwise = min(int(value), _MOST_DOTS)
    return otherwise

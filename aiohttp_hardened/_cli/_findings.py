"""What the doctor can find: a title and a fix each, and the evidence of one case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple


class _Kind(NamedTuple):
    title: str
    fix: str = ""
    """Empty where it depends on what went wrong."""


_CATALOGUE: Final[dict[str, _Kind]] = {
    "default_executor_full": _Kind(
        "Jobs wait for a thread of the default executor; names that are looked up there wait with them",
        'let aiodns resolve names (dns.resolver="aiodns"), or give the system\'s resolver an executor of its own '
        '(dns.resolver="system", dns.system_suffixes), and move blocking work off the default executor',
    ),
    "dns_slow": _Kind(
        "DNS lookups are slow",
        "check the name servers in /etc/resolv.conf and the way to them; names of dns.system_suffixes go through "
        "the system's own resolver",
    ),
    "dns_failing": _Kind("Names are not found"),
    "dns_stale": _Kind(
        "Name servers fail, and last good addresses are served instead",
        "repair the name servers: these answers hold for dns.stale_ttl (an hour) after the last good one",
    ),
    "dead_address": _Kind(
        "An address of the host is dead or far: connects wait one Happy Eyeballs delay for the next one",
        "take the address out of DNS, or repair its host; quarantine hides it for dns.quarantine (30 s) at a time",
    ),
    "syn_retransmissions": _Kind(
        "Connects wait a second or more for a SYN to be sent again",
        "the peer's accept queue overflows: raise its backlog above your burst (and net.core.somaxconn with it); "
        "a lossy network looks the same",
    ),
    "connect_failing": _Kind("Connects fail"),
    "pool_exhausted": _Kind(
        "Requests gave up waiting for a pooled connection; the hosts are fine",
        "read bodies to their end so that connections return, or raise pool.limit",
    ),
    "handshakes_per_request": _Kind(
        "Connections are not reused: there is a TLS handshake every few requests",
        "keep one session for the life of the process; look for `Connection: close`, force_close, and peers that "
        "close idle connections sooner than pool.keepalive",
    ),
    "resumption_lost": _Kind(
        "TLS sessions are not resumed: new connections pay for full handshakes",
        "let every server of the host share its ticket keys and send tickets; leave tls.resumption on",
    ),
    "tls_slow": _Kind(
        "TLS handshakes take seconds", "look at the peer's load, and at proxies and load balancers before it"
    ),
    "tls_failing": _Kind("TLS handshakes fail"),
    "plaintext_before_tls": _Kind(
        "Plaintext stood in front of the encrypted stream, and the connection was refused",
        "do not use that proxy before somebody explains where the bytes come from",
    ),
    "proxy_refuses": _Kind("The proxy makes no tunnel"),
    "certificate_ends": _Kind(
        "A certificate ends within a week, or has ended",
        "renew it: your own file and reload_tls (or tls.reload_interval), or the peer's",
    ),
    "reload_rejected": _Kind(
        "New certificate files were rejected; the old ones stay in use",
        "the log names OpenSSL's reason (KEY_VALUES_MISMATCH, an empty bundle, dates): replace the files as a pair",
    ),
    "contexts_growing": _Kind(
        "TLS contexts pile up; each costs milliseconds and memory",
        "make TLSSettings once, at import time: equal settings share one context, whoever asks",
    ),
    "telemetry_errors": _Kind(
        "Telemetry's own hooks fail; requests are unharmed, figures are missing",
        "the log has the first failure's stack: a hook, tracer, meter or exporter raises",
    ),
    "request_failing": _Kind("Requests fail though the connection stands"),
}
_MOST_LINES: Final = 5


@dataclass
class Finding:
    """One fault, with what shows it.

    Args:
        name: Its key in the catalogue.
        error_type: What went wrong, where the finding has a word for it.
        advice: The fix, where the catalogue has none.
    """

    name: str
    error_type: str | None = None
    advice: str = ""
    evidence: list[str] = field(default_factory=list[str])
    """One line per host or other place."""
    figures: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The same as numbers."""

    @property
    def title(self) -> str:
        """What is wrong, in words."""
        title = _CATALOGUE[self.name].title
        return title if self.error_type is None else f"{title}: {self.error_type}"

    @property
    def fix(self) -> str:
        """What to do."""
        return self.advice or _CATALOGUE[self.name].fix

    def lines(self) -> list[str]:
        """Return the evidence, shortened where it is long."""
        more = len(self.evidence) - _MOST_LINES
        return self.evidence[:_MOST_LINES] + ([f"and {more} more like it"] if more > 0 else [])

    def as_json(self) -> dict[str, Any]:
        """Return the fields that ``doctor --help`` lists."""
        return {
            "name": self.name,
            "title": self.title,
            "error_type": self.error_type,
            "evidence": self.evidence,
            "figures": self.figures,
            "fix": self.fix,
        }


class Findings:
    """Findings by name and word: what several hosts show is one finding."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str | None], Finding] = {}

    def add(self, name: str, line: str, *, error_type: str | None = None, advice: str = "", **figures: Any) -> None:
        """Add one line of evidence.

        Args:
            name: Of the catalogue.
            line: What shows it.
            error_type: What went wrong, where there is a word for it.
            advice: The fix, where the catalogue has none.
            **figures: The same as numbers, with units in their names.
        """
        finding = self._found.setdefault((name, error_type), Finding(name, error_type, advice))
        finding.evidence.append(line)
        finding.figures.append(figures)

    def __contains__(self, name: str) -> bool:
        """Say whether there is a finding of that name."""
        return any(each == name for each, _ in self._found)

    def all(self) -> list[Finding]:
        """Return them in the catalogue's order."""
        order = list(_CATALOGUE)
        return sorted(self._found.values(), key=lambda each: (order.index(each.name), each.error_type or ""))

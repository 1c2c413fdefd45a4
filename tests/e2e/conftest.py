"""What the endings need for a whole run: an authority, and two proxies that nobody here wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiohttp_hardened import testing

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture(scope="session")
def ca() -> Generator[testing.ThrowawayCA]:
    with testing.throwaway_ca() as made:
        yield made


@pytest.fixture(scope="session")
def proxies(ca: testing.ThrowawayCA) -> Generator[dict[str, str]]:
    """Give the URL of each proxy by its scheme."""
    with testing.http_proxy() as http, testing.http_proxy(ca.issue("127.0.0.1")) as https:
        yield {"http": http, "https": https}

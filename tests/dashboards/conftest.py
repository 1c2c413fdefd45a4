from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.dashboards._prometheus import PROMETHEUS, Prometheus, running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has looked at faulty traffic for a while, and goes on to."""
    if PROMETHEUS is None:
        pytest.skip("prometheus is missing: apt-get install prometheus")
    with running(tmp_path_factory.mktemp("prometheus")) as found:
        deadline = time.monotonic() + 60
        seen = 'min(count_over_time(aiohttp_client_ssl_contexts{job=~"scraped|pushed"}[1m])) >= 10'
        while not found.query(seen) and time.monotonic() < deadline:
            time.sleep(0.5)
        yield found

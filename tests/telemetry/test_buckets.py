from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from tests.telemetry._driving import Driven, driven

if TYPE_CHECKING:
    from collections.abc import Sequence

REQUEST = "http.client.request.duration"


def bounds(hooked: Driven, name: str) -> Sequence[float]:
    return hooked.points(name)[0].explicit_bounds


def test_buckets_tell_milliseconds_and_failures_apart(hooked: Driven) -> None:
    """Edges go from 0.5 ms to 30 s and split the clusters at 0.25 s, 1 s and 3 s off."""
    hooked.get()
    for name in (REQUEST, "aiohttp.client.tcp_connect.duration", "dns.lookup.duration"):
        edges = bounds(hooked, name)
        assert (edges[0], edges[-1]) == (0.0005, 30.0)
        for cluster in (0.25, 1.0, 3.0):
            around = [edge for edge in edges if cluster * 0.85 <= edge <= cluster * 1.25]
            assert len(around) >= 2, (name, cluster)


def test_a_users_view_wins() -> None:
    """Edges are advice."""
    view = View(instrument_name="http.client.*", aggregation=ExplicitBucketHistogramAggregation([1.0, 2.0]))
    with driven(views=[view]) as hooked:
        hooked.get()
        assert tuple(bounds(hooked, REQUEST)) == (1.0, 2.0)
        assert bounds(hooked, "dns.lookup.duration")[0] == 0.0005


def test_exemplars_carry_the_requests_trace(hooked: Driven) -> None:
    """A histogram's exemplar leads to the request's trace, though nothing is attached."""
    attempt = hooked.begin()
    hooked.connect(attempt)
    hooked.answer(attempt)
    span = hooked.span("GET")
    assert span.context is not None
    collected = hooked.metrics()
    for name in (REQUEST, "aiohttp.client.tcp_connect.duration"):
        ((exemplar,),) = [point.exemplars for point in collected[name].data.data_points]
        assert (exemplar.trace_id, exemplar.span_id) == (span.context.trace_id, span.context.span_id)

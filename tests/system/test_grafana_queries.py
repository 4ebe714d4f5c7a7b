"""The queries of the dashboard for Grafana, in a Prometheus that scrapes a service with traffic."""

import re
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.sdk.sdk_support import serving
from tests.support.counting import PLANS, counted_everything
from tests.support.database_server import Pair
from tests.support.grafana import DASHBOARD, QUERIES, Query
from tests.support.metrics import documented
from tests.support.postgres import as_url
from tests.support.prometheus import JOB, Prometheus, Sample, running_prometheus
from tests.support.standby_pairs import migrated_pair


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A primary and a standby with the service's schema."""
    yield from migrated_pair()


@pytest.fixture(scope="module")
async def prometheus(
    pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Prometheus]:
    """Prometheus, after scrapes before, between and after two rounds of traffic."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "plans.toml").write_text(PLANS)
    values = {
        "TENANTRY_PLANS": str(folder / "plans.toml"),
        "DATABASE_URL": as_url(pair.primary.conninfo),
        "DATABASE_CHECKS_URL": as_url(pair.standby.conninfo),
    }
    async with (
        serving(pair.primary.conninfo, None, **values) as served,
        running_prometheus(folder, served.url.removeprefix("http://")) as prometheus,
    ):
        for _ in range(2):
            await counted_everything(served.service)
            await prometheus.scraped(2)
        yield prometheus


async def answer(prometheus: Prometheus, query: Query) -> list[Sample]:
    return await prometheus.query(query.filled_in(job=JOB, interval="1m"))


@pytest.mark.parametrize("query", QUERIES, ids=str)
async def test_a_query_has_an_answer_with_the_labels_of_its_legend(
    prometheus: Prometheus, query: Query
) -> None:
    samples = await answer(prometheus, query)
    assert samples
    for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
        assert all(sample.labels.get(label) for sample in samples), label


async def test_traffic_shows(prometheus: Prometheus) -> None:
    queries = {str(query): query for query in QUERIES}
    for name in (
        "Requests-0",
        "Events by outcome-0",
        "Rejected webhook requests-0",
        "Rejected credentials-0",
    ):
        assert max(sample.value for sample in await answer(prometheus, queries[name])) > 0, name


async def test_variables_find_the_job_and_the_instance(prometheus: Prometheus) -> None:
    for variable in DASHBOARD["templating"]["list"][1:]:
        found = re.fullmatch(
            r"label_values\((\w+)(?:\{[^}]*\})?, (\w+)\)", variable["query"]["query"]
        )
        assert found
        assert found[1] in documented()
        assert [bool(sample.labels[found[2]]) for sample in await prometheus.query(found[1])] == [
            True
        ]
    for annotation in DASHBOARD["annotations"]["list"]:
        assert await prometheus.query(annotation["expr"]) == []  # no alert is loaded

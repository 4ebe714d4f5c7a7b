"""The metrics of webhooks, which the database knows: they cover workers that answer no requests."""

from tenantry.db.database import Database
from tenantry.jobs.database_metrics import DatabaseMetrics
from tests.support.outbound_webhooks import Sending
from tests.support.patience import patient_database
from tests.support.webhook_endpoint import answer, endpoint_at, running_webhook_server

PREFIX = "tenantry_outbound_webhook_"


async def shown(database: Database, sending: Sending) -> dict[str, float]:
    """Return the metrics of webhooks, by their last words and labels."""
    families = await DatabaseMetrics(database, sending.endpoints).read()
    assert families is not None
    return {
        " ".join([sample.name.removeprefix(PREFIX), *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    }


async def test_attempts_and_events_are_counted_by_endpoint(emptied: str) -> None:
    async with (
        running_webhook_server() as server,
        patient_database(emptied, pool_size=2) as database,
    ):
        sending = Sending(database, [endpoint_at(server.url)])
        await sending.begin()
        await sending.publish(2)
        await sending.send()
        server.responses.append(answer(500))
        await sending.publish()
        await sending.send()
        expected = {
            "attempts_total app accepted": 2,
            "attempts_total app failed": 1,
            "events_waiting app": 1,
            "events_held app": 0,
            "disabled app": 0,
        }
        assert await shown(database, sending) == expected
        server.responses.append(answer(410))
        sending.clock.advance(seconds=10)
        await sending.send()
        expected |= {
            "attempts_total app failed": 2,
            "events_waiting app": 0,
            "events_held app": 1,
            "disabled app": 1,
        }
        assert await shown(database, sending) == expected


async def test_without_endpoints_there_are_none(emptied: str) -> None:
    async with patient_database(emptied, pool_size=2) as database:
        assert await shown(database, Sending(database, [])) == {}

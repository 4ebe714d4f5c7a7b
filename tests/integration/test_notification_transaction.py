"""A failed payment, its notification and the job that delivers it are stored in one transaction."""

import logging

import pytest

from tenantry.db.job_names import DELIVER_MAIL
from tests.support import events
from tests.support.billing import Provider, rows
from tests.support.service import Service

REFUSE_NOTIFICATIONS = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON mails FOR EACH ROW EXECUTE FUNCTION refuse();
"""


async def test_an_event_whose_notification_cannot_be_stored_is_rolled_back(
    fresh_service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Provider(fresh_service)
    subscriber = await provider.subscriber()
    failure = events.failed(customer=subscriber.customer)
    await rows(fresh_service.conninfo, REFUSE_NOTIFICATIONS)
    with caplog.at_level(logging.CRITICAL + 1):
        assert (await provider.post(failure)).status_code == 500
    assert await provider.stored(failure["id"]) is None
    assert await provider.state(subscriber) == ("free", "none")
    await rows(fresh_service.conninfo, "DROP FUNCTION refuse CASCADE")
    await provider.send(failure)
    assert await provider.state(subscriber) == ("free", "past_due")
    assert len(await provider.notifications(subscriber)) == 1


async def test_a_notification_is_stored_with_one_job_that_delivers_it(
    fresh_service: Service,
) -> None:
    provider = Provider(fresh_service)
    subscriber = await provider.subscriber()
    failures = [events.failed(customer=subscriber.customer) for _ in range(2)]
    await provider.send(*failures, failures[0])
    jobs = await rows(
        fresh_service.conninfo,
        "SELECT args->>'mail_id' AS id FROM procrastinate_jobs WHERE task_name = %s",
        DELIVER_MAIL,
    )
    notifications = await provider.notifications(subscriber)
    assert len(notifications) == 2
    assert sorted(job["id"] for job in jobs) == sorted(
        notification["id"] for notification in notifications
    )

"""Webhooks: each event reaches each endpoint at least once, whatever its receiver does."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from http import HTTPStatus
from typing import Final

import psycopg
import pytest

from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError, NotFoundError
from tenantry.domain.webhook_deliveries import RETRY_DELAYS
from tenantry.jobs.retention import RetentionService
from tenantry.outbound.webhooks import send_test_message
from tests.support.logs import watched
from tests.support.outbound_webhooks import Sending, content, ids, signature_of
from tests.support.patience import patient_database
from tests.support.webhook_endpoint import (
    CUT,
    OTHER_SECRET,
    SECRET,
    SILENT,
    ReceivedWebhook,
    WebhookServer,
    answer,
    endpoint_at,
    listening,
    running_webhook_server,
)

FAILURE: Final = answer(HTTPStatus.INTERNAL_SERVER_ERROR)
RESPONSES: Final = (
    answer(HTTPStatus.OK),
    answer(HTTPStatus.OK),
    FAILURE,
    answer(HTTPStatus.GONE),
    answer(HTTPStatus.SERVICE_UNAVAILABLE, "Retry-After: 600"),
    CUT,
    SILENT,
)
LATE_EVENT: Final = """
INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data)
SELECT outbound_epoch(), 'tenant.updated', 'acme', now(), now(), '{}'
"""
DAY: Final = timedelta(days=1)


@pytest.fixture
async def database(emptied: str) -> AsyncIterator[Database]:
    async with patient_database(emptied, pool_size=4) as database:
        yield database


@pytest.fixture
async def server() -> AsyncIterator[WebhookServer]:
    async with running_webhook_server() as server:
        yield server


@pytest.fixture
async def sending(database: Database, server: WebhookServer) -> Sending:
    """Webhooks to one endpoint, which is known."""
    sending = Sending(database, [endpoint_at(server.url)])
    await sending.begin()
    return sending


async def test_a_message_is_the_event_of_the_feed_and_is_signed(
    sending: Sending, server: WebhookServer
) -> None:
    [event] = await sending.publish()
    await sending.send()
    [received] = server.received
    message = content(received)
    at = message.pop("timestamp")
    version = int(event.removeprefix("evt_"))
    assert message == {
        "id": event,
        "type": "tenant.updated",
        "orgId": "acme",
        "at": at,
        "version": version,
        "data": {"number": 0},
    }
    assert received.headers["webhook-id"] == event
    assert received.headers["webhook-signature"] == signature_of(received, SECRET)
    assert await sending.deliveries() == [(event, "delivered", 1)]


async def test_a_delivered_event_is_not_sent_again(sending: Sending, server: WebhookServer) -> None:
    await sending.publish()
    await sending.send()
    sending.clock.advance(days=1)
    await sending.send()
    assert len(server.received) == 1


async def test_a_new_endpoint_begins_with_the_next_change(
    database: Database, server: WebhookServer
) -> None:
    sending = Sending(database, [endpoint_at(server.url)])
    await sending.publish()
    await sending.send()
    [event] = await sending.publish()
    await sending.send()
    assert ids(server.received) == [event]


async def test_an_endpoint_receives_the_types_that_it_names(
    database: Database, server: WebhookServer
) -> None:
    sending = Sending(database, [endpoint_at(server.url, types=("member.*",))])
    await sending.begin()
    await sending.publish(event_type="tenant.updated")
    [event] = await sending.publish(event_type="member.added")
    await sending.send()
    assert ids(server.received) == [event]


async def test_an_event_that_commits_late_is_not_passed_over(
    sending: Sending, server: WebhookServer, emptied: str
) -> None:
    [before] = await sending.publish()
    async with await psycopg.AsyncConnection.connect(emptied) as slow:
        await slow.execute(LATE_EVENT)
        await sending.publish()
        await sending.send()
        assert ids(server.received) == [before]
        await slow.commit()
    await sending.send()
    assert sorted(ids(server.received)) == sorted(await sending.events())
    assert len(server.received) == 3


async def test_the_events_of_a_new_epoch_are_sent_after_those_of_the_last_one(
    sending: Sending, server: WebhookServer
) -> None:
    published = await sending.publish(2)
    async with sending.database.transaction(ACROSS_TENANTS) as connection:
        await connection.execute("RESET ROLE")
        await connection.execute("UPDATE outbound_epochs SET timeline = timeline + 1")
    published += await sending.publish(2)
    await sending.send()
    assert sorted(ids(server.received)) == sorted(published)
    published += await sending.publish(1)
    await sending.send()
    assert sorted(ids(server.received)) == sorted(published)


async def test_failed_attempts_follow_the_schedule_under_one_id(
    sending: Sending, server: WebhookServer
) -> None:
    server.response = FAILURE
    [event] = await sending.publish()
    await sending.send()
    for number, delay in enumerate(RETRY_DELAYS, start=1):
        assert len(server.received) == number
        sending.clock.now += delay - timedelta(seconds=1)
        await sending.send()
        assert len(server.received) == number, f"attempt {number + 1} came early"
        sending.clock.advance(seconds=2)
        await sending.send()
    assert set(ids(server.received)) == {event}
    times = [each.headers["webhook-timestamp"] for each in server.received]
    assert len(set(times)) == len(times) == 8
    signatures = [each.headers["webhook-signature"] for each in server.received]
    assert signatures == [signature_of(each, SECRET) for each in server.received]


async def test_an_event_without_further_attempts_is_held_until_it_is_resent(
    sending: Sending, server: WebhookServer
) -> None:
    server.responses.extend([FAILURE] * (len(RETRY_DELAYS) + 1))
    [event] = await sending.publish()
    await _fail_all_attempts(sending)
    assert await sending.deliveries() == [(event, "held", 8)]
    [state] = await sending.webhooks.states()
    assert (state.waiting, state.held, state.disabled_at) == (0, 1, None)
    sending.clock.advance(days=1)
    await sending.send()
    assert len(server.received) == 8
    assert (await sending.resend("app")).events == 1
    await sending.send()
    assert await sending.deliveries() == [(event, "delivered", 1)]
    assert set(ids(server.received)) == {event}


async def _fail_all_attempts(sending: Sending) -> None:
    await sending.send()
    for delay in RETRY_DELAYS:
        sending.clock.now += delay + timedelta(seconds=1)
        await sending.send()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_that_asks_for_a_pause_gets_it(
    sending: Sending, server: WebhookServer, status: int
) -> None:
    server.responses.append(answer(status, "Retry-After: 120"))
    first = await sending.publish()
    await sending.send()
    second = await sending.publish()
    sending.clock.advance(seconds=119)
    await sending.send()
    assert ids(server.received) == first
    sending.clock.advance(seconds=2)
    await sending.send()
    await sending.send()
    assert sorted(ids(server.received)) == sorted(first + first + second)


async def test_a_success_beside_it_does_not_end_a_pause(
    sending: Sending, server: WebhookServer
) -> None:
    server.responses.append(answer(429, "Retry-After: 600"))
    await sending.publish(4)
    await sending.send()
    await sending.publish()
    await sending.send()
    assert len(server.received) == 4
    sending.clock.advance(seconds=601)
    await sending.send()
    assert len(server.received) == 6


async def test_a_pause_lasts_an_hour_at_most(sending: Sending, server: WebhookServer) -> None:
    server.responses.append(answer(503, "Retry-After: 86400"))
    await sending.publish()
    await sending.send()
    sending.clock.advance(hours=1, seconds=1)
    await sending.send()
    assert len(server.received) == 2


async def test_a_pause_does_not_shorten_the_schedule(
    sending: Sending, server: WebhookServer
) -> None:
    server.responses.extend([FAILURE, answer(503, "Retry-After: 10")])
    await sending.publish()
    await sending.send()
    sending.clock.advance(seconds=6)
    await sending.send()
    sending.clock.advance(minutes=4)
    await sending.send()
    assert len(server.received) == 2
    sending.clock.advance(minutes=2)
    await sending.send()
    assert len(server.received) == 3


async def test_a_receiver_that_is_gone_gets_nothing_more(
    sending: Sending, server: WebhookServer
) -> None:
    server.responses.append(answer(HTTPStatus.GONE))
    await sending.publish()
    with watched("tenantry.outbound") as log:
        await sending.send()
    assert log.count("ERROR tenantry.outbound.webhooks webhook app is disabled") == 1
    await sending.publish(3)
    sending.clock.advance(days=2)
    await sending.send()
    assert len(server.received) == 1
    [state] = await sending.webhooks.states()
    assert (state.waiting, state.held) == (0, 4)
    assert state.disabled_reason == "the receiver answered 410 Gone"


async def test_an_endpoint_disabled_amid_its_deliveries_gets_no_more(
    sending: Sending, server: WebhookServer
) -> None:
    await sending.publish(100)
    await sending.webhooks.queue_due()
    server.responses.append(answer(HTTPStatus.GONE))
    await sending.send()
    assert len(server.received) <= 4
    await sending.send()
    assert len(server.received) <= 4


async def test_after_five_days_without_a_success_events_are_held_until_it_is_enabled(
    sending: Sending, server: WebhookServer
) -> None:
    server.response = FAILURE
    published = []
    for _ in range(5 * 4):
        published += await sending.publish()
        await sending.send()
        [state] = await sending.webhooks.states()
        assert state.disabled_at is None
        sending.clock.advance(hours=6)
    published += await sending.publish()
    await sending.send()
    [state] = await sending.webhooks.states()
    assert state.disabled_reason == "no attempt succeeded for 5 days"
    server.response = answer(HTTPStatus.OK)
    server.received.clear()
    published += await sending.publish(10)
    sending.clock.advance(days=3)
    await sending.send()
    assert server.received == []
    [state] = await sending.webhooks.states()
    assert (state.waiting, state.held) == (0, len(published))

    assert (await sending.enable("app")).events == len(published)
    await sending.send()
    assert sorted(set(ids(server.received))) == sorted(published)
    [state] = await sending.webhooks.states()
    assert (state.waiting, state.held, state.failing_since) == (0, 0, None)


async def test_a_success_within_five_days_keeps_an_endpoint_enabled(
    sending: Sending, server: WebhookServer
) -> None:
    for _ in range(10):
        server.response = FAILURE
        await sending.publish()
        await sending.send()
        sending.clock.advance(days=4)
        server.response = answer(HTTPStatus.OK)
        await sending.send()
    [state] = await sending.webhooks.states()
    assert state.disabled_at is None


async def test_errors_hangs_and_resets_lose_no_event(
    database: Database, server: WebhookServer
) -> None:
    sending = Sending(database, [endpoint_at(server.url)], timeout=0.1)
    await sending.begin()
    chance = random.Random(45)  # noqa: S311  # no secret
    kinds = [FAILURE, answer(502), SILENT, CUT, answer(302, "Location: /elsewhere")]
    answers = [
        chance.choice(kinds) if chance.random() < 0.3 else server.response for _ in range(80)
    ]
    server.responses.extend(answers)
    published = await sending.publish(50)
    patient = Sending(database, sending.endpoints, sending.clock)  # once no receiver hangs
    for delay in (timedelta(), *RETRY_DELAYS):
        sending.clock.now += delay + timedelta(seconds=1)
        await (sending if server.responses else patient).send()
    assert sorted(set(ids(server.received))) == sorted(published)
    assert {status for _, status, _ in await sending.deliveries()} == {"delivered"}
    for each in server.received:
        assert each.headers["webhook-signature"] == signature_of(each, SECRET)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
async def test_no_sequence_of_troubles_loses_an_event(
    emptied: str, database: Database, seed: int
) -> None:
    server = RecordingServer()
    async with listening(server), patient_database(emptied, pool_size=4) as other_database:
        one = Sending(database, [endpoint_at(server.url)], timeout=0.1)
        other = Sending(other_database, one.endpoints, one.clock, timeout=0.1)
        await one.begin()
        chance = random.Random(seed)  # noqa: S311  # no secret
        late = await psycopg.AsyncConnection.connect(emptied)
        for _ in range(60):
            await _trouble(chance, server, late, (one, other))
        await late.commit()
        await late.close()
        server.response = answer(HTTPStatus.OK)
        await one.enable("app")
        patient = Sending(database, one.endpoints, one.clock)
        for delay in (timedelta(), *RETRY_DELAYS):
            one.clock.now += delay + timedelta(seconds=1)
            await patient.send()
        published = await one.events()
    assert server.accepted == set(published)
    assert {status for _, status, _ in await one.deliveries()} == {"delivered"}


class RecordingServer(WebhookServer):
    """Notes which messages it has accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted = set[str]()

    def response_to(self, request: ReceivedWebhook) -> bytes:
        if self.response.startswith(b"HTTP/1.1 2"):
            self.accepted.add(request.headers["webhook-id"])
        return self.response


async def _trouble(
    chance: random.Random,
    server: WebhookServer,
    late: psycopg.AsyncConnection,
    workers: tuple[Sending, Sending],
) -> None:
    """Do one of the things that happen to webhooks."""
    sending = chance.choice(workers)
    match chance.randrange(10):
        case 0 | 1 | 2:
            await sending.send()
        case 3:
            await asyncio.gather(*(each.send() for each in workers))
        case 4:
            await sending.publish_together(chance.randint(1, 5))
        case 5:
            sending.clock.advance(seconds=chance.choice([6, 400, 20_000, 200_000]))
        case 6:
            server.response = chance.choice(RESPONSES)
        case 7:
            await late.execute(LATE_EVENT)
        case 8:
            await late.commit()
        case _:
            await sending.enable("app")


async def test_two_workers_make_one_delivery_of_an_event(
    emptied: str, database: Database, server: WebhookServer
) -> None:
    async with patient_database(emptied, pool_size=4) as other_database:
        endpoints = [endpoint_at(server.url)]
        one, other = Sending(database, endpoints), Sending(other_database, endpoints)
        await one.begin()
        published = await one.publish(30)
        async with other_database.transaction(ACROSS_TENANTS) as connection:
            await connection.execute("SELECT FROM webhook_endpoints FOR NO KEY UPDATE")
            await one.webhooks.queue_due()
            assert await one.deliveries() == [], "the endpoint is another worker's now"
        await other.webhooks.queue_due()
        await one.webhooks.queue_due()
        assert await one.deliveries() == [(event, "queued", 0) for event in published]


async def test_an_attempt_that_is_not_recorded_is_made_again(
    emptied: str, sending: Sending, server: WebhookServer
) -> None:
    [event] = await sending.publish()
    await sending.webhooks.queue_due()
    async with patient_database(emptied, pool_size=1) as lost:
        losing = Sending(lost, sending.endpoints, sending.clock)
        server.hold.clear()
        attempt = asyncio.create_task(losing.webhooks.deliver("app"))
        await server.until(1)
        await lost.close()
        server.hold.set()
        with pytest.raises(DatabaseUnavailableError):
            await attempt
    await sending.send()
    assert ids(server.received) == [event, event]
    assert await sending.deliveries() == [(event, "delivered", 1)]


async def test_an_event_that_is_gone_is_skipped(
    sending: Sending, server: WebhookServer, emptied: str
) -> None:
    server.response = FAILURE
    [event] = await sending.publish()
    await sending.send()
    async with sending.database.transaction(ACROSS_TENANTS) as connection:
        await connection.execute("DELETE FROM outbound_events")
    sending.clock.advance(hours=1)
    with watched("tenantry.outbound") as log:
        await sending.send()
    assert log.count(f"{event} was not delivered, and is gone") == 1
    assert len(server.received) == 1
    assert await sending.deliveries() == []


async def test_an_event_that_is_gone_cannot_be_resent(sending: Sending) -> None:
    [event] = await sending.publish()
    await sending.send()
    async with sending.database.transaction(ACROSS_TENANTS) as connection:
        await connection.execute("DELETE FROM outbound_events")
    with pytest.raises(NotFoundError):
        await sending.resend("app", event=event)
    assert await sending.deliveries() == [(event, "delivered", 1)]


async def test_further_events_wait_in_the_feed_while_many_deliveries_are_due(
    sending: Sending,
) -> None:
    await sending.publish_together(2500)
    for expected in (1000, 2000, 2500):
        await sending.webhooks.queue_due()
        await sending.webhooks.queue_due()
        assert len(await sending.deliveries()) == expected
        async with sending.database.transaction(ACROSS_TENANTS) as connection:
            await connection.execute(
                "UPDATE webhook_deliveries SET status = 'held', next_attempt_at = NULL"
            )
    assert [event for event, _, _ in await sending.deliveries()] == await sending.events()
    assert (await sending.enable("app")).events == 2500
    assert {status for _, status, _ in await sending.deliveries()} == {"queued"}


async def test_events_since_a_moment_are_found_in_a_long_feed(sending: Sending) -> None:
    await sending.publish_together(1500)
    sending.clock.advance(hours=1)
    moment = sending.clock.now
    await sending.publish_together(1500)
    for _ in range(3):
        await sending.webhooks.queue_due()
        async with sending.database.transaction(ACROSS_TENANTS) as connection:
            await connection.execute("DELETE FROM webhook_deliveries")
    assert (await sending.resend("app", since=moment)).events == 1500
    assert [event for event, _, _ in await sending.deliveries()] == (await sending.events())[1500:]


async def test_resending_sends_events_again(sending: Sending, server: WebhookServer) -> None:
    first = await sending.publish(2)
    sending.clock.advance(minutes=10)
    moment = sending.clock.now
    later = await sending.publish(2)
    await sending.send()
    server.received.clear()
    assert (await sending.resend("app", since=moment)).events == 2
    await sending.send()
    assert sorted(ids(server.received)) == sorted(later)
    server.received.clear()
    assert (await sending.resend("app", event=first[0])).events == 1
    await sending.send()
    assert ids(server.received) == [first[0]]


async def test_events_of_an_added_type_that_were_passed_over_can_be_resent(
    sending: Sending, server: WebhookServer
) -> None:
    since = sending.clock.now
    [event] = await sending.publish(event_type="member.added")
    await sending.send()
    assert server.received == []
    wider = [endpoint_at(server.url, types=("tenant.*", "member.*"))]
    renewed = Sending(sending.database, wider, sending.clock)
    assert (await renewed.resend("app", since=since)).events == 1
    await renewed.send()
    assert ids(server.received) == [event]


@pytest.mark.parametrize("event", ["evt_1", "evt_", "1", "evt_" + "9" * 40])
async def test_an_unknown_event_cannot_be_resent(sending: Sending, event: str) -> None:
    with pytest.raises(NotFoundError):
        await sending.resend("app", event=event)


async def test_an_unknown_endpoint_cannot_be_operated(sending: Sending) -> None:
    with pytest.raises(NotFoundError):
        await sending.enable("other")
    with pytest.raises(NotFoundError):
        await sending.resend("other")


async def test_a_test_message_is_signed_and_sent_to_a_disabled_endpoint_too(
    sending: Sending, server: WebhookServer
) -> None:
    server.responses.append(answer(HTTPStatus.GONE))
    await sending.publish()
    await sending.send()
    client = sending.webhooks.client
    result = await send_test_message(client, sending.endpoints[0], sending.clock())
    received = server.received[-1]
    message = content(received)
    assert result.status == 204
    assert (message["type"], message["data"]) == ("webhook.test", {"endpoint": "app"})
    assert received.headers["webhook-id"] == message["id"]
    assert received.headers["webhook-signature"] == signature_of(received, SECRET)
    [state] = await sending.webhooks.states()
    assert state.disabled_at is not None


async def test_an_endpoint_that_left_the_catalog_loses_its_rows_after_a_day(
    sending: Sending, server: WebhookServer
) -> None:
    server.response = FAILURE
    await sending.publish()
    await sending.send()
    await _retain(sending, [])
    assert len(await sending.deliveries()) == 1
    sending.clock.advance(days=1, seconds=1)
    await _retain(sending, ["app"])
    assert len(await sending.deliveries()) == 1
    await _retain(sending, [])
    assert await sending.deliveries() == []
    async with sending.database.transaction(ACROSS_TENANTS) as connection:
        assert await connection.fetch_count("SELECT count(*) FROM webhook_endpoints") == 0


async def test_deliveries_end_with_the_retention_of_their_events(
    sending: Sending, server: WebhookServer
) -> None:
    server.responses.append(answer(HTTPStatus.NO_CONTENT))
    server.response = answer(HTTPStatus.GONE)
    await sending.publish()
    await sending.send()
    await sending.publish()
    await sending.send()
    sending.clock.advance(days=30, seconds=-60)
    await _retain(sending, ["app"])
    assert [status for _, status, _ in await sending.deliveries()] == ["delivered", "queued"]
    sending.clock.advance(seconds=61)
    with watched("tenantry.jobs") as log:
        await _retain(sending, ["app"])
    assert await sending.deliveries() == []
    assert log.count("1 undelivered webhooks, 1 delivered webhooks") == 1


async def _retain(sending: Sending, endpoints: list[str]) -> None:
    await RetentionService(sending.database, 90 * DAY, sending.clock, endpoints).run()


async def test_no_secret_is_logged_or_stored(
    database: Database, server: WebhookServer, emptied: str
) -> None:
    endpoint = endpoint_at(server.url + "?token=of-the-receiver", secrets=(SECRET, OTHER_SECRET))
    sending = Sending(database, [endpoint], timeout=0.1)
    server.responses.extend([FAILURE, CUT, SILENT, answer(HTTPStatus.GONE)])
    await sending.begin()
    await sending.publish(4)
    with watched("") as log:
        await sending.send()
    async with database.transaction(ACROSS_TENANTS) as connection:
        stored = await connection.fetch_column(
            "SELECT e::text || d::text FROM webhook_endpoints e JOIN webhook_deliveries d ON d.endpoint = e.name "
            "UNION ALL SELECT j::text FROM procrastinate_jobs j"
        )
    text = "\n".join([*log.lines, *stored])
    assert len(stored) >= 5
    for secret in (SECRET, OTHER_SECRET, "of-the-receiver"):
        assert secret.removeprefix("whsec_") not in text

"""Failed handling: an event that cannot be stored, and an unavailable database."""

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import httpx2
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenantry.common.clock import DEFAULT_TIMEOUTS, Timeouts
from tenantry.db.migrate import migrate
from tenantry_devkit.embedded_postgres import EmbeddedServer
from tests.support import events
from tests.support.billing import Provider, add_tenants, rows
from tests.support.events import NOW
from tests.support.service import PROJECTS, SHORT_TIMEOUTS, Service, running_service

POISON = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id = '%s' THEN RAISE EXCEPTION 'poison'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON billing_events FOR EACH ROW EXECUTE FUNCTION refuse();
"""


@pytest.fixture
def provider(emptied_service: Service) -> Provider:
    return Provider(emptied_service)


@asynccontextmanager
async def failing_event(conninfo: str, event_id: str) -> AsyncIterator[None]:
    """A database that refuses one event."""
    await rows(conninfo, POISON % event_id)
    try:
        yield
    finally:
        await rows(conninfo, "DROP FUNCTION refuse CASCADE")


async def test_one_failing_event_does_not_fail_its_batch(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    subscribers = [provider.unlinked() for _ in range(64)]
    await add_tenants(
        provider.service.conninfo,
        {subscriber.id: subscriber.customer for subscriber in subscribers},
    )
    failures = [events.failed(customer=subscriber.customer) for subscriber in subscribers]
    unlucky, poison = subscribers[40], failures[40]
    async with failing_event(provider.service.conninfo, poison["id"]):
        with caplog.at_level(logging.CRITICAL + 1):
            statuses = await provider.send_together(failures)
        assert statuses.count(200) == 63
        assert statuses[40] == 500
        assert await statuses_and_mails(provider) == {
            subscriber.id: ("none", 0) if subscriber is unlucky else ("past_due", 1)
            for subscriber in subscribers
        }
        assert await provider.stored(poison["id"]) is None
    await provider.send(poison)
    assert await statuses_and_mails(provider) == {
        subscriber.id: ("past_due", 1) for subscriber in subscribers
    }


async def statuses_and_mails(provider: Provider) -> dict[str, tuple[str, int]]:
    """Each tenant's subscription status, and the number of its notifications."""
    found = await rows(
        provider.service.conninfo,
        "SELECT id, subscription_status, (SELECT count(*) FROM notifications WHERE tenant_id = tenants.id) AS mails "
        "FROM tenants",
    )
    return {row["id"]: (row["subscription_status"], row["mails"]) for row in found}


async def test_a_failure_is_answered_as_text(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    event = events.updated(org="missing")
    async with failing_event(provider.service.conninfo, event["id"]):
        with caplog.at_level(logging.ERROR):
            answer = await provider.post(event)
    assert (answer.status_code, answer.text) == (500, "Handling failed")
    assert answer.headers["content-type"].startswith("text/plain")
    assert event["id"] in caplog.text


async def test_both_copies_of_a_failing_event_fail(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = await provider.subscriber()
    failure = events.failed(customer=subscriber.customer)
    async with failing_event(provider.service.conninfo, failure["id"]):
        with caplog.at_level(logging.CRITICAL + 1):
            assert await provider.send_together([failure] * 10) == [500] * 10
    assert await provider.send_together([failure] * 10) == [200] * 10
    assert len(await provider.notifications(subscriber)) == 1


async def test_a_failing_link_is_rolled_back_with_its_event(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = await provider.subscriber(linked=False)
    claim = events.completed(org=subscriber.id, customer=subscriber.customer)
    async with failing_event(provider.service.conninfo, claim["id"]):
        with caplog.at_level(logging.CRITICAL + 1):
            assert (await provider.post(claim)).status_code == 500
    assert (await provider.tenant(subscriber))["stripeCustomerId"] is None
    await provider.send(claim)
    assert (await provider.tenant(subscriber))["stripeCustomerId"] == subscriber.customer


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server of these tests' own, to be stopped and started."""
    with migrated_server() as server:
        yield server


@contextmanager
def migrated_server() -> Iterator[EmbeddedServer]:
    """A server with a database to copy."""
    with tempfile.TemporaryDirectory(prefix="tenantry-test-") as folder:
        server = EmbeddedServer(Path(folder), options=("fsync=off", "max_connections=50"))
        server.start()
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute("CREATE DATABASE migrated")
        migrate(make_conninfo(server.conninfo, dbname="migrated"))
        yield server
        server.stop()


@asynccontextmanager
async def fragile(
    server: EmbeddedServer, timeouts: Timeouts = DEFAULT_TIMEOUTS
) -> AsyncIterator[Provider]:
    """The provider of a service whose database may go away."""
    name = events.new_id("fragile").lower()
    await rows(server.conninfo, f"CREATE DATABASE {name} TEMPLATE migrated")
    async with running_service(make_conninfo(server.conninfo, dbname=name), timeouts) as service:
        yield Provider(service)


def processes_of(server: EmbeddedServer) -> list[int]:
    """The server's processes, its first one last."""
    [directory] = Path(server.conninfo.split()[0].removeprefix("host=")).parent.glob(
        "postgres/postmaster.pid"
    )
    first = int(directory.read_text().split()[0])
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == first:
            children.append(int(stat.parent.name))
    return [*children, first]


@contextmanager
def paused(server: EmbeddedServer) -> Iterator[None]:
    """The server neither works nor goes away."""
    stopped = processes_of(server)
    for process in reversed(stopped):
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in stopped:
            os.kill(process, signal.SIGCONT)


async def taken(server: EmbeddedServer, deliver: Callable[[], Awaitable[httpx2.Response]]) -> None:
    """Send a request again until it is answered with 200, as the provider does."""
    async with asyncio.timeout(20):
        while (await deliver()).status_code != 200:
            await rows(server.conninfo, "SELECT 1")


async def test_an_unreachable_database_is_503(server: EmbeddedServer) -> None:
    async with fragile(server, SHORT_TIMEOUTS) as provider:
        subscriber = await provider.subscriber()
        await provider.send(events.updated(**subscriber.names))
        failure = events.failed(customer=subscriber.customer, created=NOW + 1)
        assert subscriber.organization is not None
        owner = subscriber.organization.owner
        server.stop()
        try:
            answer = await provider.post(failure)
            assert (answer.status_code, answer.text, answer.headers["retry-after"]) == (
                503,
                "Service unavailable",
                "1",
            )
            assert answer.headers["content-type"].startswith("text/plain")
            assert await provider.send_together([failure] * 20) == [503] * 20
            answers = await asyncio.gather(
                owner.get(PROJECTS),
                owner.get(subscriber.organization.path),
                provider.service.client.get("/readyz"),
            )
            assert [answer.status_code for answer in answers] == [503, 503, 503]
        finally:
            server.start()
        await taken(server, lambda: provider.post(failure))
        assert (await owner.get(PROJECTS)).status_code == 200
        assert await provider.state(subscriber) == ("pro", "past_due")
        assert len(await provider.notifications(subscriber)) == 1


async def test_a_restart_between_two_events_fails_no_event(server: EmbeddedServer) -> None:
    async with fragile(server) as provider:
        subscriber = await provider.subscriber()
        assert subscriber.organization is not None
        await provider.send(events.updated(**subscriber.names))
        server.stop()
        server.start()
        await provider.send(events.failed(customer=subscriber.customer, created=NOW + 1))
        assert (await subscriber.organization.owner.get(PROJECTS)).status_code == 200
        assert (
            await subscriber.organization.owner.get(subscriber.organization.path)
        ).status_code == 200


@pytest.mark.thorough
async def test_a_hanging_database_is_503(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    await check_hanging(server, caplog, SHORT_TIMEOUTS)


async def check_hanging(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture, timeouts: Timeouts
) -> None:
    """Stop every process of the database: requests are answered within 5 s, and nothing is lost."""
    async with fragile(server, timeouts) as provider:
        subscriber = await provider.subscriber()
        await provider.send(events.updated(**subscriber.names))
        failures = [
            events.failed(customer=subscriber.customer, created=NOW + number)
            for number in range(1, 4)
        ]
        assert subscriber.organization is not None
        owner, tenant_path = subscriber.organization.owner, subscriber.organization.path
        with caplog.at_level(logging.CRITICAL + 1), paused(server):
            async with asyncio.timeout(5):
                answers = await asyncio.gather(
                    *(provider.post(failure) for failure in failures),
                    owner.get(PROJECTS),
                    owner.get(tenant_path),
                )
            assert {answer.status_code for answer in answers} == {503}
            async with asyncio.timeout(5):
                again = await provider.post(failures[0])
            assert (again.status_code, again.headers["retry-after"]) == (503, "1")
        for failure in failures:
            await taken(server, partial(provider.post, failure))
        assert await provider.state(subscriber) == ("pro", "past_due")
        assert len(await provider.notifications(subscriber)) == 3
        await taken(server, lambda: owner.get(tenant_path))

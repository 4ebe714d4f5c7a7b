"""Orders of delivery over HTTP: two processes, one database, many senders at the same time."""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2

from tests.support import figures
from tests.support.app import OPERATOR_TOKEN
from tests.support.billing import rows
from tests.support.commands import SECRETS
from tests.support.deployment import WORKERS, deployed
from tests.support.events import Shape
from tests.support.histories import DAY, PLOTS, History, Links, Plot, Record, plot_history
from tests.support.orders import OURS, shuffled
from tests.support.postgres import as_url
from tests.support.service import TENANTS
from tests.support.signing import deliver

SENDERS: Final = 24
SEED: Final = 3


class Subscriber(NamedTuple):
    """A tenant, and what happens to it."""

    org: str
    plot: Plot
    history: History

    @property
    def owed(self) -> set[str]:
        """The failures that its owner must be mailed, in any order."""
        waits = self.plot.links is not Links.GIVEN and self.history.truth.status != "past_due"
        return {
            failure for failure, paid in self.history.failures.items() if not paid and not waits
        }


class Delivery(NamedTuple):
    """An event on its way to a tenant."""

    subscriber: Subscriber
    event: dict[str, Any]


class Postman:
    """Sends deliveries; ``forbidden`` are the failures first sent when a later success had been
    answered.
    """

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self._sent: set[str] = set()
        self._answered: set[str] = set()
        self.forbidden: set[str] = set()
        self.answers: Counter[tuple[int, str]] = Counter()

    async def send(self, deliveries: Iterable[Delivery]) -> None:
        """Send deliveries one after the other; several senders may share the iterator."""
        for subscriber, event in deliveries:
            event_id = event["id"]
            later_successes = subscriber.history.failures.get(event_id, frozenset())
            if event_id not in self._sent and later_successes & self._answered:
                self.forbidden.add(event_id)
            self._sent.add(event_id)
            secret, now = SECRETS["PROVIDER_WEBHOOK_SECRET"], int(time.time())
            answer = await deliver(self._client, event, secret=secret, at=now)
            self._answered.add(event_id)
            self.answers[answer.status_code, answer.text] += 1


async def check_orders(
    conninfo: str, folder: Path, record_property: figures.RecordProperty, each: int
) -> int:
    """Deliver the histories of so many tenants for each plot in random orders; returns the number
    of deliveries.
    """
    rng = random.Random(SEED)  # noqa: S311  # the same sample in every run
    deliveries = _deliveries(rng, each, start=int(time.time()) - 100 * DAY)
    subscribers = {delivery.subscriber.org: delivery.subscriber for delivery in deliveries}
    settings = {"OPERATOR_TOKEN": OPERATOR_TOKEN, "PARKED_MAIL_HOURS": str(200 * 24)}
    async with (
        deployed(as_url(conninfo), folder, credential=OPERATOR_TOKEN, **settings) as deployment,
        deployment.client() as client,
    ):
        for subscriber in subscribers.values():
            await _create(client, subscriber)
        postman, stream = Postman(client), iter(deliveries)
        await asyncio.gather(*(postman.send(stream) for _ in range(SENDERS)))
        # all at once would be an overload
        records = [await _record(client, org) for org in subscribers]
    mails = await _mails(conninfo)
    wrong = [
        subscriber.org
        for subscriber, record in zip(subscribers.values(), records, strict=True)
        if record != (subscriber.history.truth, subscriber.history.customer)
        or not _tells_rightly(subscriber, mails[subscriber.org], postman.forbidden)
    ]
    ran = {
        "tenants": len(subscribers),
        "deliveries": len(deliveries),
        "processes": WORKERS,
        "senders": SENDERS,
    }
    figures.record(record_property, "Over HTTP", ran, {OURS: len(wrong)})
    assert postman.answers == {(200, "OK"): len(deliveries)}
    assert wrong == []
    assert await _ledger(conninfo) == (len({delivery.event["id"] for delivery in deliveries}), 0)
    return len(deliveries)


def _deliveries(rng: random.Random, each: int, start: int) -> list[Delivery]:
    """Every plot happens to many subscribers; each in another order, and interleaved."""
    streams = []
    for number in range(each):
        for place, plot in enumerate(PLOTS):
            org = f"org-{place}-{number}"
            endpoints = [plot_history(plot, shape, org=org, start=start) for shape in Shape]
            subscriber = Subscriber(org, plot, endpoints[0])
            stream = shuffled(rng, [history.events for history in endpoints])
            streams.append([Delivery(subscriber, event) for event in stream])
    turns = [number for number, stream in enumerate(streams) for _ in stream]
    rng.shuffle(turns)
    waiting = [iter(stream) for stream in streams]
    return [next(waiting[number]) for number in turns]


async def _create(client: httpx2.AsyncClient, subscriber: Subscriber) -> None:
    body = {
        "name": subscriber.org,
        "ownerEmail": "owner@x.example",
        "ownerId": f"usr_{subscriber.org}",
    }
    if subscriber.history.customers:
        [body["stripeCustomerId"]] = subscriber.history.customers
    answer = await client.put(f"{TENANTS}/{subscriber.org}", json=body)
    assert answer.status_code == 201, answer.text


async def _record(client: httpx2.AsyncClient, org: str) -> tuple[Record, str | None]:
    """What the API says of a tenant's billing, and its customer."""
    answer = await client.get(f"{TENANTS}/{org}/export")
    assert answer.status_code == 200, answer.text
    tenant = answer.json()["tenant"]
    end = tenant["currentPeriodEnd"]
    period_end = None if end is None else int(datetime.fromisoformat(end).timestamp())
    record = Record(
        tenant["plan"], tenant["subscriptionStatus"], period_end, tenant["cancelAtPeriodEnd"]
    )
    return record, tenant["stripeCustomerId"]


async def _mails(conninfo: str) -> dict[str, list[str]]:
    """The events of notifications, by tenant."""
    mails = defaultdict(list)
    for row in await rows(conninfo, "SELECT tenant_id, cause FROM notifications"):
        mails[row["tenant_id"]].append(row["cause"])
    return mails


def _tells_rightly(subscriber: Subscriber, told_of: list[str], forbidden: set[str]) -> bool:
    once = set(told_of)
    failures = subscriber.history.failures.keys()
    return len(told_of) == len(once) and subscriber.owed <= once <= failures - forbidden


async def _ledger(conninfo: str) -> tuple[int, int]:
    """How many events the ledger holds, and how many of them still wait."""
    statement = "SELECT count(*) AS events, count(*) FILTER (WHERE outcome = 'parked') AS parked FROM billing_events"
    [counts] = await rows(conninfo, statement)
    return counts["events"], counts["parked"]

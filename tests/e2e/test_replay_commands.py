"""``tenantry events`` and ``tenantry tenants``, as operators run them."""

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg
import pytest
from click.testing import CliRunner

from tenantry.billing.batch_store import pack
from tenantry_cli.commands import main
from tests.support import events
from tests.support.billing import Provider, Subscriber
from tests.support.cases import cases
from tests.support.command_runner import invoke_async
from tests.support.commands import Done
from tests.support.postgres import PostgresServer, as_url
from tests.support.service import running_service

DOCS: Final = Path(__file__).parents[2] / "docs" / "how-to" / "billing.md"
COMMAND: Final = "tenantry admin explain-tenant acme"
ACME: Final = Subscriber("acme", "cus_acme", None)


def moment(day: int, hour: int, minute: int, second: int = 0) -> datetime:
    return datetime(2026, 1, day, hour, minute, second, tzinfo=UTC)


@pytest.fixture(scope="module")
async def late_update(postgres: PostgresServer) -> AsyncIterator[str]:
    """A database whose tenant got an upgrade after the cancellation that followed it; tests use
    copies.
    """
    sent = [
        (
            moment(1, 12, 0, 3),
            events.updated(**ACME.names, event_id="evt_subscribed", created=at(1, 12, 0)),
        ),
        (
            moment(10, 11, 45),
            events.deleted(
                **ACME.names,
                price="price_business",
                event_id="evt_cancelled",
                created=at(10, 11, 45),
            ),
        ),
        (
            moment(10, 12, 35, 20),
            events.updated(
                **ACME.names,
                price="price_business",
                event_id="evt_upgraded",
                created=at(10, 9, 30),
                previous={"items": {"data": [{"price": {"id": "price_pro"}}]}},
            ),
        ),
    ]
    with postgres.database() as conninfo:
        async with running_service(conninfo) as service:
            provider = Provider(service)
            await provider.arrives(ACME, name="Acme Corp", stripeCustomerId=ACME.customer)
            for now, event in sent:
                service.clock.now = now
                await provider.send(event)
        yield conninfo


@pytest.fixture
def after_a_late_update(postgres: PostgresServer, late_update: str) -> Iterator[str]:
    """The address of a copy of that database."""
    with postgres.database(like=late_update) as conninfo:
        yield as_url(conninfo)


def at(day: int, hour: int, minute: int) -> int:
    return int(moment(day, hour, minute).timestamp())


def damage(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE tenants SET plan = 'business', subscription_status = 'active'")


def quoted_in_docs() -> str:
    """What the docs say that the command prints."""
    _, _, after = DOCS.read_text().partition(f"```text\n$ {COMMAND}\n")
    return after.partition("```\n")[0]


async def test_the_docs_show_what_explain_prints(tmp_path: Path, after_a_late_update: str) -> None:
    done = await invoke_async(
        *COMMAND.split()[1:], folder=tmp_path, DATABASE_URL=after_a_late_update
    )
    assert (done.code, done.err) == (0, "")
    assert quoted_in_docs() == done.out


async def test_explain_as_json_with_a_limit(tmp_path: Path, after_a_late_update: str) -> None:
    done = await invoke_async(
        "admin",
        "explain-tenant",
        "acme",
        "--json",
        "--limit",
        "2",
        folder=tmp_path,
        DATABASE_URL=after_a_late_update,
    )
    document = json.loads(done.out)
    assert document["tenant"]["name"] == "Acme Corp"
    assert [(entry["id"], entry["outcome"]) for entry in document["entries"]] == [
        ("evt_upgraded", "late"),
        ("evt_cancelled", "applied"),
    ]
    assert document["entries"][1]["before"]["currentPeriodEnd"] == "2026-01-31T12:00:00Z"
    assert (document["earlier"], document["events"], document["differences"]) == (1, 3, [])
    assert (document["state"]["plan"], document["state"]["providerStatus"]) == ("free", "canceled")


async def replay(folder: Path, database_url: str, *options: str) -> Done:
    return await invoke_async(
        "admin", "replay-events", *options, folder=folder, DATABASE_URL=database_url
    )


async def test_replay_shows_and_repairs_differences(
    tmp_path: Path, after_a_late_update: str
) -> None:
    damage(after_a_late_update)
    looked = await replay(tmp_path, after_a_late_update, "--dry-run")
    differences = "acme  plan: business -> free\nacme  subscriptionStatus: active -> canceled\n"
    assert (looked.code, looked.err) == (3, "")
    assert looked.out.startswith(f"{differences}1 tenant, 3 events folded in ")
    assert looked.out.endswith(": 1 differing, nothing written\n")
    done = await replay(
        tmp_path,
        after_a_late_update,
        "--org",
        "acme",
        "--since",
        "2026-01-10T12:00:00Z",
        "--json",
    )
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert report.pop("seconds") >= 0
    assert report == {
        "dryRun": False,
        "tenants": 1,
        "events": 3,
        "differing": 1,
        "repaired": 1,
        "readAgain": [],
        "unreadable": 0,
        "stopped": None,
        "continueWith": None,
        "details": [
            {
                "tenantId": "acme",
                "events": 3,
                "fields": [
                    {"field": "plan", "stored": "business", "folded": "free"},
                    {"field": "subscriptionStatus", "stored": "active", "folded": "canceled"},
                ],
                "parked": 0,
                "repaired": True,
            }
        ],
    }
    again = await replay(tmp_path, after_a_late_update, "--dry-run")
    assert again.code == 0
    assert again.out.startswith("1 tenant, 3 events folded in ")


async def test_a_replay_reads_invalid_events_again(
    tmp_path: Path, after_a_late_update: str
) -> None:
    broken = {"metadata": {"orgId": "acme"}, "status": None}
    paid = events.updated(
        **ACME.names, event_id="evt_again", price="price_business", created=at(11, 12, 0)
    )
    async with running_service(after_a_late_update) as service:
        service.clock.now = moment(11, 12, 0)
        for event_id in ("evt_again", "evt_lost"):
            event = events.event(
                "customer.subscription.updated", broken, event_id=event_id, created=at(11, 12, 0)
            )
            await Provider(service).send(event)
    with psycopg.connect(after_a_late_update) as connection:
        arrivals: dict[str, int] = dict(
            connection.execute("SELECT id, arrival FROM billing_events").fetchall()
        )
        readable = (pack(events.body(paid)), arrivals["evt_again"])
        connection.execute("UPDATE billing_bodies SET body = %s WHERE arrival = %s", readable)
        connection.execute("DELETE FROM billing_bodies WHERE arrival = %s", (arrivals["evt_lost"],))
    line = "acme  evt_again customer.subscription.updated, read again: "
    lost = (
        "1 invalid event cannot be read again: the raw body was removed after RAW_BODY_DAYS, or not stored "
        "(RAW_BODIES). `tenantry backfill` "
        "fetches those that the provider still lists.\n"
    )
    looked = await replay(tmp_path, after_a_late_update, "--dry-run")
    assert (looked.code, looked.err) == (3, lost)
    assert looked.out.startswith(f"{line}would take its place\n1 tenant, 3 events folded in ")
    assert looked.out.endswith(": 0 differing, nothing written, 1 event read again\n")
    done = await replay(tmp_path, after_a_late_update)
    assert (done.code, done.err) == (0, lost)
    assert done.out.startswith(f"{line}applied\n1 tenant, 4 events folded in ")
    again = await replay(tmp_path, after_a_late_update, "--dry-run", "--json")
    assert again.code == 0
    assert [json.loads(again.out)[name] for name in ("readAgain", "unreadable")] == [[], 1]


async def test_rebuild_shows_every_field(tmp_path: Path, after_a_late_update: str) -> None:
    damage(after_a_late_update)
    done = await invoke_async(
        "admin", "rebuild-tenants", "acme", folder=tmp_path, DATABASE_URL=after_a_late_update
    )
    assert (done.code, done.err) == (0, "")
    *lines, summary = done.out.splitlines()
    assert lines == [
        "acme: 3 events folded, repaired",
        "  plan                 business -> free",
        "  subscriptionStatus   active -> canceled",
        "  currentPeriodEnd     -",
        "  cancelAtPeriodEnd    false",
        "  cancelAt             -",
        "  endsAt               2026-01-10T11:45:00Z",
        "  seats                -",
        "  access               -",
        "  tipCreated           2026-01-10T11:45:00Z",
        "  providerStatus       canceled",
        "  subscriptionId       -",
        "  subscriptionCreated  -",
        '  details              {"period_start":1767268800,"ended_at":1768045500}',
        "  pastDueSince         -",
        "  unpaidInvoices       -",
        "  paidUntil            -",
        "  otherSubscriptions   sub_acme canceled (free)",
    ]
    assert summary.endswith(": 1 differing, 1 repaired")
    every = await invoke_async(
        "admin", "rebuild-tenants", "--dry-run", folder=tmp_path, DATABASE_URL=after_a_late_update
    )
    assert every.code == 0
    assert every.out.startswith("1 tenant, 3 events folded in ")


MISSING: Final = (
    ("admin", "replay-events", "--org", "acme", "--org", "missing"),
    ("admin", "rebuild-tenants", "acme", "missing"),
    ("admin", "explain-tenant", "missing"),
)


@pytest.mark.parametrize("arguments", MISSING, ids=lambda arguments: " ".join(arguments[:2]))
async def test_a_tenant_that_does_not_exist_exits_with_5(
    tmp_path: Path, after_a_late_update: str, arguments: tuple[str, ...]
) -> None:
    damage(after_a_late_update)
    done = await invoke_async(*arguments, folder=tmp_path, DATABASE_URL=after_a_late_update)
    assert (done.code, done.out) == (5, "")
    assert "missing" in done.err
    with psycopg.connect(after_a_late_update) as connection:
        assert connection.execute("SELECT plan FROM tenants").fetchone() == ("business",)


WRONG_USE: Final = (
    "admin rebuild-tenants --since 2026-01-01",
    "admin explain-tenant",
    "admin explain-tenant acme --limit 0",
    "admin replay-events --since soon",
    "admin replay-events acme",
)


@cases("arguments", WRONG_USE)
def test_wrong_use_exits_with_2(arguments: str) -> None:
    assert CliRunner().invoke(main, arguments.split()).exit_code == 2


async def test_body_is_printed_as_the_provider_sent_it(
    tmp_path: Path, after_a_late_update: str
) -> None:
    shown = await invoke_async(
        "admin",
        "show-event-body",
        "evt_subscribed",
        folder=tmp_path,
        DATABASE_URL=after_a_late_update,
    )
    event = events.updated(**ACME.names, event_id="evt_subscribed", created=at(1, 12, 0))
    assert (shown.code, shown.out, shown.err) == (0, events.body(event).decode(), "")
    missing = await invoke_async(
        "admin", "show-event-body", "evt_unknown", folder=tmp_path, DATABASE_URL=after_a_late_update
    )
    assert (missing.code, missing.out, missing.err) == (
        5,
        "",
        "There is no such event: evt_unknown.\n",
    )

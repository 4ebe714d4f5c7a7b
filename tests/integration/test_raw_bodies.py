"""The raw bodies of events: stored unchanged and compressed, those that the setting names."""

import json

import pytest

from tenantry.billing.ledger_queries import OperatorLedger
from tenantry.common.clock import system_clock
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import NotFoundError
from tests.support import events
from tests.support.billing import rows
from tests.support.catalogs import CATALOG
from tests.support.patience import patient_database
from tests.support.service import Service, running_service
from tests.support.signing import deliver

BODIES = "SELECT body FROM billing_bodies"
ENTRIES = """
SELECT e.id, e.outcome, b.body
  FROM billing_events e
  LEFT JOIN billing_bodies b USING (arrival)
"""


async def stored_body(conninfo: str, event_id: str) -> bytes:
    database = patient_database(conninfo, 1)
    await database.open()
    try:
        return await OperatorLedger(
            database, BillingPolicy(catalog=CATALOG), system_clock
        ).get_body(event_id)
    finally:
        await database.close()


async def test_body_is_stored_compressed(emptied_service: Service) -> None:
    event = events.updated(event_id="evt_1") | {"note": "Zürich " * 500}
    body = json.dumps(event, indent=3, ensure_ascii=False).encode() + b" \r\n"
    await deliver(emptied_service.client, body)
    assert await stored_body(emptied_service.conninfo, "evt_1") == body
    [stored] = await rows(emptied_service.conninfo, BODIES)
    assert len(stored["body"]) < len(body) / 3


async def test_removed_body_and_unknown_event_are_not_found(emptied_service: Service) -> None:
    await deliver(emptied_service.client, events.body(events.updated(event_id="evt_1")))
    await rows(emptied_service.conninfo, "DELETE FROM billing_bodies")
    with pytest.raises(
        NotFoundError,
        match=r"^There is no such body: evt_1 is a snapshot, older than RAW_BODY_DAYS, or excluded by RAW_BODIES\.$",
    ):
        await stored_body(emptied_service.conninfo, "evt_1")
    with pytest.raises(NotFoundError, match=r"^There is no such event: evt_2\.$"):
        await stored_body(emptied_service.conninfo, "evt_2")


@pytest.mark.parametrize(("raw_bodies", "stored"), [("off", []), ("failed", ["evt_malformed"])])
async def test_only_the_bodies_that_the_setting_names_are_stored(
    emptied: str, raw_bodies: str, stored: list[str]
) -> None:
    async with running_service(emptied, RAW_BODIES=raw_bodies) as service:
        valid = events.updated(event_id="evt_valid")
        malformed = events.updated(event_id="evt_malformed") | {"data": {"object": {"items": 7}}}
        for event in (valid, malformed):
            await deliver(service.client, events.body(event))
    entries = await rows(emptied, ENTRIES)
    assert {entry["id"]: entry["outcome"] for entry in entries} == {
        "evt_valid": "parked",
        "evt_malformed": "invalid",
    }
    assert [entry["id"] for entry in entries if entry["body"] is not None] == stored

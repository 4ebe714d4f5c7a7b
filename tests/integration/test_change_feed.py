"""The feed of changes: what happened to whom, in an order that a reader can continue from."""

from typing import Any, Final

import psycopg

from tests.support.service import Service, refusal

EVENTS: Final = "/api/v1/operator/events"


async def page(service: Service, **parameters: str | int) -> dict[str, Any]:
    response = await service.operator.get(EVENTS, **parameters)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_new_tenant_is_an_event_with_its_record(service: Service) -> None:
    start = (await page(service, after="now"))["nextCursor"]
    org = await service.organization()
    record = (await service.operator.get(f"/api/v1/operator/tenants/{org.id}")).json()
    [created, *_] = (await page(service, after=start, orgId=org.id))["data"]
    assert (created["type"], created["orgId"]) == ("tenant.created", org.id)
    assert created["data"] == record


async def test_an_open_transaction_delays_later_events_and_hides_none(service: Service) -> None:
    start = (await page(service, after="now"))["nextCursor"]
    with psycopg.connect(service.conninfo) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        org = await service.organization()
        waiting = await page(service, after=start, orgId=org.id)
        assert waiting["data"] == []
    [event, *_] = (await page(service, after=waiting["nextCursor"], orgId=org.id))["data"]
    assert event["type"] == "tenant.created"


async def test_a_cursor_that_is_none_is_refused(service: Service) -> None:
    response = await service.operator.get(EVENTS, after="!")
    assert refusal(response) == (400, "invalid_cursor")


async def test_the_id_of_an_event_is_a_cursor_too(service: Service) -> None:
    org = await service.organization()
    whole = (await page(service, orgId=org.id, types="tenant.*,member.*,audit.*"))["data"]
    assert len(whole) >= 3  # all of one transaction
    for number, event in enumerate(whole, start=1):
        rest = await page(
            service, after=event["id"], orgId=org.id, types="tenant.*,member.*,audit.*"
        )
        assert rest["data"] == whole[number:]


async def test_an_event_that_is_not_kept_is_an_expired_cursor(service: Service) -> None:
    response = await service.operator.get(EVENTS, after="evt_1")
    assert refusal(response) == (410, "cursor_expired")
    response = await service.operator.get(EVENTS, after="evt_x")
    assert refusal(response) == (400, "invalid_cursor")

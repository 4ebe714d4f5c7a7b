"""A leaked key is revoked as soon as any client reports it, and its owner is mailed once."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
import psycopg
import pytest
from psycopg.rows import dict_row

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.domain.api_keys import DEFAULT_FORMAT
from tenantry.domain.permissions import Mode
from tests.support.app import PEPPER
from tests.support.cases import cases
from tests.support.database_link import database_link
from tests.support.logs import watched
from tests.support.postgres import PostgresServer
from tests.support.service import (
    KEYS,
    PROJECTS,
    Key,
    Organization,
    Service,
    refusal,
    running_service,
)
from tests.support.smtp import LOOPBACK, MailServer, running

REPORT: Final = f"{KEYS}/report-leak"
UNKNOWN: Final = DEFAULT_FORMAT.compose(Mode.LIVE, bytes(32))
OWNER: Final = "owner@x.example"


async def report(service: Service, secret: str | None) -> httpx2.Response:
    return await service.anonymous.post(REPORT, {"secret": secret})


async def reported(service: Service, key: Key) -> dict[str, Any]:
    """The answer to a report of this key, which must be good."""
    answer = await report(service, key.caller.credential)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def rows(service: Service, statement: str, *values: object) -> list[dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(
        service.conninfo, row_factory=dict_row
    ) as connection:
        return await (await connection.execute(statement, values)).fetchall()


async def notices_of(service: Service, org: Organization) -> list[dict[str, Any]]:
    return await rows(service, "SELECT * FROM mails WHERE tenant_id = %s", org.id)


async def test_reported_key_is_rejected_immediately(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    assert (await key.caller.get(PROJECTS)).status_code == 200
    answer = await report(service, key.caller.credential)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert refusal(await key.caller.get(PROJECTS)) == (401, "api_key_revoked")
    record = (await org.owner.get(key.path)).json()
    assert answer.json() == {"id": key.id, "status": "revoked", "revokedAt": record["revokedAt"]}
    assert record["status"] == "revoked"


async def test_owner_gets_the_keys_name_and_no_secret(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read", name="CI deploys")
    ended = await reported(service, key)
    [notice] = await notices_of(service, org)
    assert (notice["type"], notice["recipient"]) == ("api_key.leaked", OWNER)
    assert notice["data"] == {
        "keyId": key.id,
        "keyName": "CI deploys",
        "start": key.record["start"],
        "last4": key.record["last4"],
        "reportedAt": ended["revokedAt"],
        "reportedFrom": "127.0.0.1",
    }


async def test_audit_trail_has_the_report_and_its_address(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    ended = await reported(service, key)
    [entry] = await rows(
        service,
        "SELECT * FROM audit_events WHERE target_id = %s AND action = 'api_key.leak_reported'",
        key.id,
    )
    assert (entry["actor_kind"], entry["actor_id"], entry["address"]) == (
        "anybody",
        None,
        "127.0.0.1",
    )
    assert entry["before"] == {"status": "active", "revokedAt": None}
    assert entry["after"] == {"status": "revoked", "revokedAt": ended["revokedAt"]}


async def test_concurrent_reports_get_equal_answers_and_one_mail(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    answers = await asyncio.gather(*(reported(service, key) for _ in range(20)))
    assert all(answer == answers[0] for answer in answers)
    assert len(await notices_of(service, org)) == 1
    entries = await rows(
        service, "SELECT FROM audit_events WHERE target_id = %s AND actor_kind = 'anybody'", key.id
    )
    assert len(entries) == 1


async def test_concurrent_report_and_revocation_both_succeed(service: Service) -> None:
    org = await service.organization()
    keys = [await service.key(org.owner, org.id, "projects:read") for _ in range(9)]
    answers = await asyncio.gather(
        *(reported(service, key) for key in keys), *(org.owner.delete(key.path) for key in keys)
    )
    assert {answer.status_code for answer in answers if isinstance(answer, httpx2.Response)} == {
        204
    }


async def test_report_of_a_revoked_key_sends_no_mail(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    await org.owner.delete(key.path)
    revoked_at = (await org.owner.get(key.path)).json()["revokedAt"]
    assert await reported(service, key) == {
        "id": key.id,
        "status": "revoked",
        "revokedAt": revoked_at,
    }
    assert await notices_of(service, org) == []


async def test_report_of_a_revoked_key_waits_for_no_lock(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    first = await reported(service, key)
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE", (org.id,))
        assert await reported(service, key) == first


async def test_expired_key_is_revoked_without_a_mail(fresh_service: Service) -> None:
    service = fresh_service
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read", expiresAt="2026-01-01T13:00:00Z")
    service.clock.advance(hours=2)
    ended = await reported(service, key)
    assert (ended["status"], (await org.owner.get(key.path)).json()["status"]) == (
        "revoked",
        "revoked",
    )
    assert await notices_of(service, org) == []


@pytest.mark.parametrize("overlap", [0, 3600])
async def test_only_the_reported_key_is_revoked(service: Service, overlap: int) -> None:
    org = await service.organization()
    old = await service.key(org.owner, org.id, "projects:read")
    made = (await org.owner.post(f"{old.path}/rotate", {"overlapSeconds": overlap})).json()
    successor = service.caller(made["secret"])
    await reported(service, old)
    assert refusal(await old.caller.get(PROJECTS)) == (401, "api_key_revoked")
    assert (await successor.get(PROJECTS)).status_code == 200
    assert len(await notices_of(service, org)) == bool(overlap)


async def test_last_owner_key_is_revoked_too(service: Service) -> None:
    org = await service.organization()
    await reported(service, org.key)
    assert refusal(await org.owner.get(KEYS)) == (401, "api_key_revoked")


async def test_test_mode_key_is_revoked_too(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read", mode="test")
    await reported(service, key)
    assert refusal(await key.caller.get(PROJECTS)) == (401, "api_key_revoked")


async def test_key_of_a_suspended_tenant_is_revoked_too(service: Service) -> None:
    org = await service.organization()
    tenant = {"name": org.id, "ownerEmail": OWNER}
    assert (await service.operator.put(org.path, {**tenant, "suspended": True})).status_code == 200
    await reported(service, org.key)
    assert (await service.operator.put(org.path, {**tenant, "suspended": False})).status_code == 200
    assert refusal(await org.owner.get(KEYS)) == (401, "api_key_revoked")
    assert len(await notices_of(service, org)) == 1


async def test_key_of_an_ended_tenant_is_revoked_already(service: Service) -> None:
    org = await service.organization()
    assert (await service.operator.delete(org.path)).status_code == 204
    assert (await reported(service, org.key))["status"] == "revoked"
    assert await notices_of(service, org) == []


async def test_key_under_any_pepper_is_found(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        org = await service.organization()
        key = await service.key(org.owner, org.id, "projects:read")
    async with running_service(
        conninfo, API_KEY_PEPPER=f"new-pepper-0123456789abcdef0123456789,{PEPPER}"
    ) as service:
        assert (await report(service, key.caller.credential)).json()["id"] == key.id


@cases("around", ["{}\n", " {} ", "\t{}"])
async def test_white_space_around_the_key_does_not_matter(service: Service, around: str) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    answer = await report(service, around.format(key.caller.credential))
    assert answer.json()["id"] == key.id


async def test_unknown_key_is_not_found(service: Service) -> None:
    assert refusal(await report(service, UNKNOWN)) == (404, "not_found")


NO_KEYS: Final = {
    "wrong checksum": UNKNOWN[:-1] + "0",
    "too short": UNKNOWN[:-1],
    "not a key": "hunter2",
    "a token": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ1c2VyIn0.c2lnbmF0dXJl",
    "other letters": "svc_live_" + "é" * 49,
    "nothing": "",
    "null": None,
    "too long": "x" * 1001,
}


@pytest.fixture(scope="module")
async def cut_off(postgres: PostgresServer) -> AsyncIterator[Service]:
    """The service without its database."""
    with postgres.database() as conninfo:
        async with (
            database_link(conninfo) as link,
            running_service(link.conninfo, DEFAULT_TIMEOUTS) as service,
        ):
            await link.cut()
            yield service


@pytest.mark.parametrize("what", NO_KEYS)
async def test_malformed_key_is_rejected_without_the_database_or_an_echo(
    cut_off: Service, what: str
) -> None:
    secret = NO_KEYS[what]
    answer = await report(cut_off, secret)
    assert refusal(answer) == (422, "validation_failed")
    assert [fault["location"] for fault in answer.json()["errors"]] == ["secret"]
    assert not secret or secret not in answer.text


async def test_report_without_the_database_is_503(cut_off: Service) -> None:
    answer = await report(cut_off, UNKNOWN)
    assert refusal(answer) == (503, "database_unavailable")
    assert "retry-after" in answer.headers


async def test_key_in_another_field_is_not_echoed(service: Service) -> None:
    answers = [
        await service.anonymous.post(REPORT, {UNKNOWN: "x"}),
        await service.anonymous.post(REPORT, UNKNOWN),
        await service.anonymous.call("POST", REPORT, content=UNKNOWN.encode()),
        await service.anonymous.call("POST", f"{REPORT}?secret={UNKNOWN}", {}),
    ]
    assert {answer.status_code for answer in answers} <= {400, 415, 422}
    assert all(UNKNOWN not in answer.text for answer in answers)


async def test_log_contains_no_part_of_the_key(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    with watched(level=logging.DEBUG) as watch:
        await reported(service, key)
        await report(service, UNKNOWN)
    assert not [line for line in watch.lines if "svc_" in line]


@pytest.mark.thorough
async def test_repeated_reports_send_one_mail(conninfo: str) -> None:
    async with (
        running(MailServer()) as server,
        running_service(
            conninfo,
            RUN_JOBS="true",
            MAIL_FROM="Acme <keys@acme.example>",
            SMTP_URL=f"smtp://{LOOPBACK}:{server.port}",
        ) as service,
    ):
        org = await service.organization()
        first = await service.key(org.owner, org.id, "projects:read", name="CI <deploys> & more")
        second = await service.key(org.owner, org.id, "projects:read")
        for _ in range(5):
            await reported(service, first)
        await reported(service, second)
        await server.wait_for(lambda server: len(server.received) >= 2)
        await service.anonymous.get("/healthz")
    assert len(server.received) == 2
    [mail] = [mail for mail in server.received if first.id in mail.part("plain")]
    assert mail.recipients == [OWNER]
    assert mail.message["Subject"] == "A leaked API key was revoked"
    for text in (mail.part("plain"), mail.part("html")):
        assert f"{first.record['start']}...{first.record['last4']}" in text
        assert "2026-01-01 12:00:00 UTC, from 127.0.0.1" in text
        assert str(first.caller.credential) not in text
    assert "CI <deploys> & more" in mail.part("plain")
    assert "CI &lt;deploys&gt; &amp; more" in mail.part("html")

"""`tenantry admin erase-person`: nothing of the person stays, and all else does."""

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, LiteralString
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from tests.support import events
from tests.support.app import PEPPER, running_app
from tests.support.backup import run_script
from tests.support.cases import cases
from tests.support.command_runner import invoke_async
from tests.support.commands import Done
from tests.support.issuer import AUDIENCE
from tests.support.members import (
    MEMBERS,
    add_member,
    change_role,
    join,
    owned,
    path_of,
    remove_member,
)
from tests.support.postgres import PostgresServer, as_url
from tests.support.service import (
    PROJECTS,
    WHOAMI,
    Caller,
    Organization,
    Service,
    refusal,
    running_service,
)
from tests.support.signing import deliver

ADA: Final = "auth0|ada_5f7c"
ADDRESS: Final = "Ada.L@x.example"
OTHER: Final = "auth0|ada_5f7c2"
OTHER_ADDRESS: Final = "nada.l@x.example"
TEXTS: Final = (
    ADDRESS,
    ADA,
    quote(ADDRESS, safe=""),
    quote(ADA, safe=""),
    "Ada.L\\u0040x.example",
    "adal@x.example",  # as limits of mails spell it
    "Ada Lovelace",
)
STATE: Final = """
SELECT t.id, plan, subscription_status, seats, t.owner_id, folded_by, access::text,
       (SELECT array_agg((id, outcome, created) ORDER BY id) FROM billing_events WHERE tenant_id = t.id)::text
  FROM tenants t ORDER BY 1
"""
"""What the events made of tenants."""
TABLES: Final = {
    "api_keys",
    "audit_events",
    "billing_bodies",
    "dashboard_sessions",
    "idempotency_keys",
    "invitations",
    "ledger_runs",
    "mails",
    "memberships",
    "operator_acts",
    "outbound_events",
    "procrastinate_jobs",
    "projects",
    "rejections",
    "request_counts",
    "tenants",
    "user_profiles",
    "webhook_deliveries",
    "webhook_endpoints",
}
REJECTED: Final = (403, "no_organization")
ENABLED: Final = {
    "INVITATIONS": "true",
    "SMTP_URL": "smtp://127.0.0.1:9",
    "MAIL_FROM": "mail@acme.example",
    "BASE_URL": "https://app.example",
}
_COLUMNS: Final = """
SELECT table_name, column_name, data_type FROM information_schema.columns
 WHERE table_schema = 'public'
   AND table_name IN (SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace)
"""
TRACES: Final[tuple[LiteralString, ...]] = (
    """
    INSERT INTO operator_acts (id, at, action, org_id, target_id, reason, address, issuer, subject, name)
    VALUES ('act_1', now(), 'tenant.suspended', %(org)s, %(org)s, 'for ' || %(email)s, '10.0.0.1', %(issuer)s,
            %(user)s, 'Ada Lovelace')
    """,
    """
    INSERT INTO ledger_runs (tenant_id, id, kind, repairs, author, requested_at)
    VALUES (%(org)s, 'run_1', 'replay', false,
            json_build_object('kind', 'operator', 'address', '10.0.0.1', 'person',
                json_build_object('issuer', %(issuer)s::text, 'subject', %(user)s::text,
                                  'name', 'Ada Lovelace'))::text, now())
    """,
    """
    INSERT INTO dashboard_sessions
           (digest, issuer, subject, claims, name, tenant_id, address, agent, proved_at, started_at, used_at)
    VALUES (sha256('1'), %(issuer)s, %(user)s, json_build_object('email', %(email)s::text)::text, 'Ada Lovelace',
            %(org)s, '10.0.0.1', 'Firefox', now(), now(), now())
    """,
    """
    INSERT INTO mails (id, type, tenant_id, cause, recipient_id, recipient, limit_key, data, status, created_at,
                       due_at, last_error)
    SELECT gen_random_uuid(), 'api_key.leaked', %(org)s, 'cause ' || status, %(user)s, %(email)s, 'adal@x.example',
           json_build_object('to', %(email)s::text), status, now(), now(), '550 <' || %(email)s || '>: no such user'
      FROM unnest(ARRAY['sent', 'queued', 'failed']) status
    """,
    """
    INSERT INTO procrastinate_jobs (queue_name, task_name, args)
    VALUES ('mail', 'test', json_build_object('to', %(email)s::text, 'user', %(user)s::text))
    """,
    """
    INSERT INTO webhook_endpoints (name, epoch, xid, version, seen_at, disabled_at, disabled_reason)
    VALUES ('crm', 1, '1', 1, now(), now(), 'rejects ' || %(email)s)
    """,
    """
    INSERT INTO webhook_deliveries (endpoint, epoch, xid, version, status, last_error, created_at)
    SELECT 'crm', epoch, xid, version, 'held', 'unknown ' || %(user)s, now() FROM outbound_events LIMIT 3
    """,
    """
    INSERT INTO rejections
           (id, org_id, kind, principal, mode, minute, code, needed, route, status, at, request_id, address, counted)
    VALUES ('rejection_1', %(org)s, 'user', %(user)s, 'live', now(), 'rate_limited', '', '', 429, now(), '1',
            '10.0.0.1', 1)
    """,
)


async def execute(service: Service, statement: LiteralString, **values: object) -> list[Any]:
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        cursor = await connection.execute(statement, values)
        return await cursor.fetchall() if cursor.description else []


def contents(conninfo: str) -> dict[str, list[str]]:
    """All rows of all tables as text, also of bytes."""
    found: dict[str, list[str]] = {}
    with psycopg.connect(conninfo) as connection:
        columns = connection.execute(_COLUMNS).fetchall()
        for table in {row[0] for row in columns}:
            shown = [
                sql.SQL("{}" if kind == "bytea" else "{}::text").format(sql.Identifier(name))
                for of, name, kind in columns
                if of == table
            ]
            query = sql.SQL("SELECT {} FROM {}").format(
                sql.SQL(", ").join(shown), sql.Identifier(table)
            )
            found[table] = ["\n".join(map(_text, row)) for row in connection.execute(query)]
    return found


def _text(value: str | bytes | None) -> str:
    if isinstance(value, bytes):
        with suppress(zlib.error):
            value = zlib.decompress(value)
        return value.decode("latin-1")
    return value or ""


def having(conninfo: str, *texts: str) -> dict[str, int]:
    """How many rows of each table have one of these texts, outside of longer ones."""
    counts = {
        table: sum(
            any(text.lower() in _without_longer(row, texts) for text in texts) for row in rows
        )
        for table, rows in contents(conninfo).items()
    }
    return {table: number for table, number in counts.items() if number}


def _without_longer(row: str, texts: Sequence[str]) -> str:
    row = row.lower()
    for longer in (OTHER, OTHER_ADDRESS):
        if longer not in texts:
            row = row.replace(longer, "")
    return row


def row_counts(conninfo: str) -> Counter[str]:
    return Counter({table: len(rows) for table, rows in contents(conninfo).items()})


async def erase(service: Service, folder: Path, *arguments: str) -> Done:
    return await admin(service, service.conninfo, folder, "erase-person", *arguments)


async def admin(
    service: Service, conninfo: str, folder: Path, *arguments: str, given: str | None = None
) -> Done:
    return await invoke_async(
        "admin",
        *arguments,
        folder=folder,
        given=given,
        DATABASE_URL=as_url(conninfo),
        API_KEY_PEPPER=PEPPER,
        OIDC_ISSUER=service.issuer.url,
        OIDC_AUDIENCE=AUDIENCE,
    )


def ada(service: Service, **more: Any) -> Caller:
    return service.user(ADA, email=ADDRESS, email_verified=True, name="Ada Lovelace", **more)


async def leave_traces(service: Service) -> tuple[Organization, Organization]:
    """Everything that a person leaves in two tenants: a member of one, removed from the other."""
    first, second = (
        await service.organization(name="Ada.L@x.example & Co"),
        await service.organization(),
    )
    for org in (first, second):
        await join(service, org, ADA, "admin")
        await join(service, org, OTHER)
        user = ada(service, org=org.id, role="admin")
        await service.key(
            user, org.id, "projects:read", name=f"key of {ADDRESS}", metadata={"made_by": ADA}
        )
        assert (await user.get(WHOAMI)).status_code == 200
        project = {"name": f"of {ADA}", "description": f"{ADDRESS}, not {OTHER_ADDRESS}"}
        for _ in range(2):
            answer = await user.post(PROJECTS, project, idempotency_key="1")
            assert answer.status_code == 201, answer.text
        invited = {"email": f"new-{org.id}@x.example", "role": "member"}
        assert (await user.post("/api/v1/invitations", invited)).status_code == 201
        invited = {"email": ADDRESS, "role": "member"}
        await org.owner.post("/api/v1/invitations", invited)
    [member] = (await second.owner.get(MEMBERS, userId=ADA)).json()["data"]
    await remove_member(second.owner, member)
    body = events.updated(org=first.id)
    body["data"]["object"]["metadata"] |= {"receipt_email": ADDRESS, "user_id": ADA}
    text = json.dumps(body).replace(ADDRESS, ADDRESS.replace("@", "\\u0040"))
    assert (await deliver(service.client, text.encode())).status_code == 200
    other = events.updated(org=second.id)
    other["data"]["object"]["metadata"] |= {
        "customer_email": OTHER_ADDRESS,
        "user_id": OTHER,
        "url": f"https://x.example/?mail={quote(ADDRESS, safe='')}&id={quote(ADA, safe='')}",
    }
    assert (await deliver(service.client, other)).status_code == 200
    values = {"org": first.id, "user": ADA, "email": ADDRESS, "issuer": service.issuer.url}
    packed = zlib.compress(f"\0{ADDRESS}".encode() + b" \xff")
    await execute(service, "INSERT INTO billing_bodies VALUES (-1, now(), %(body)s)", body=packed)
    for statement in TRACES:
        await execute(service, statement, **values)
    return first, second


async def test_nothing_of_an_erased_person_is_left(
    conninfo: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_service(conninfo, **ENABLED) as service:
        await leave_traces(service)
    async with running_service(conninfo, **ENABLED) as service:  # the former has written all
        others = having(conninfo, OTHER, OTHER_ADDRESS)
        found = having(conninfo, *TEXTS)
        assert found.keys() >= TABLES
        done = await erase(service, tmp_path, "--email", ADDRESS)
        assert done.code == 0, done.err
        assert having(conninfo, *TEXTS) == {}
        assert having(conninfo, OTHER, OTHER_ADDRESS) == others
        mails = await execute(service, "SELECT status FROM mails WHERE cause LIKE 'cause%%'")
        assert sorted(mails) == [("dropped",), ("failed",), ("sent",)]
        assert not any(text in caplog.text for text in TEXTS)


async def test_rows_and_balances_stay(conninfo: str, tmp_path: Path) -> None:
    async with running_service(conninfo, **ENABLED) as service:
        await leave_traces(service)
        shown = await execute(service, STATE)
        before = row_counts(conninfo)
        done = await erase(service, tmp_path, "--user", ADA)
        assert done.code == 0, done.err
        gone = {
            table: (number, row_counts(conninfo)[table])
            for table, number in before.items()
            if row_counts(conninfo)[table] < number
        }
        assert gone == {"dashboard_sessions": (1, 0)}
        assert await execute(service, STATE) == shown


async def test_a_removed_member_is_still_rejected_and_is_new_elsewhere(
    conninfo: str, tmp_path: Path
) -> None:
    async with running_service(conninfo, **ENABLED) as service:
        first, second = await leave_traces(service)
        again = ada(service, org=second.id, role="admin")
        assert refusal(await again.get(WHOAMI)) == REJECTED
        assert (await erase(service, tmp_path, "--email", ADDRESS)).code == 0
        for role in ("member", "admin", "owner"):
            again = ada(service, org=second.id, role=role)
            assert refusal(await again.get(WHOAMI)) == REJECTED
        assert refusal(await ada(service, asks_for=first.id).get(WHOAMI)) == REJECTED
        other = await service.user("auth0|new", org=first.id, role="member").get(WHOAMI)
        new = await ada(service, org=first.id, role="member").get(WHOAMI)
        assert (new.status_code, new.json()["scopes"]) == (200, other.json()["scopes"])
        member = await add_member(second.owner, ADA)
        assert member["status"] == "invited"


async def test_a_tenant_s_only_owner_is_not_erased(conninfo: str, tmp_path: Path) -> None:
    async with running_service(conninfo) as service:
        alone, member = await owned(service, ADA)
        shared = await service.organization()
        for user in (ADA, OTHER):
            record = await join(service, shared, user)
            await change_role(shared.owner, record, "owner")
        done = await erase(service, tmp_path, "--user", ADA)
        assert done.code == 1
        assert f"{alone.id}: transfer it" in done.err
        assert shared.id not in done.err
        assert (await alone.owner.get(path_of(member))).json()["userId"] == ADA
        ended = await service.operator.delete(alone.path)
        assert ended.status_code == 204, ended.text
        assert (await erase(service, tmp_path, "--user", ADA)).code == 0


async def test_an_address_that_gets_a_tenant_s_bills_is_not_erased(
    emptied_service: Service, tmp_path: Path
) -> None:
    org = await emptied_service.organization(ownerEmail=ADDRESS)
    done = await erase(emptied_service, tmp_path, "--email", ADDRESS)
    assert (done.code, f"{org.id}: it sends billing mail to that address" in done.err) == (1, True)


async def test_a_dry_run_writes_nothing_and_counts_the_same(conninfo: str, tmp_path: Path) -> None:
    async with running_service(conninfo, **ENABLED) as service:
        await leave_traces(service)
        before = contents(conninfo)
        preview = await erase(service, tmp_path, "--email", ADDRESS, "--dry-run")
        assert preview.code == 0, preview.err
        assert contents(conninfo) == before
        assert "nothing written" in preview.out


async def test_an_unknown_person_is_not_found(emptied_service: Service, tmp_path: Path) -> None:
    done = await erase(emptied_service, tmp_path, "--user", "auth0|unknown")
    assert (done.code, done.out) == (5, "")


@cases("arguments", [(), ("--email", ADDRESS, "--user", ADA)])
async def test_one_of_address_and_id_is_needed(
    service: Service, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert (await erase(service, tmp_path, *arguments)).code == 2


@cases(
    "arguments",
    [
        ("--email", ""),
        ("--email", "ada"),
        ("--email", "@"),
        ("--user", ""),
        ("--user", "https://id.example "),
        ("--user", f"https://other.example {ADA}"),
    ],
)
async def test_what_is_no_person_changes_nothing(
    service: Service, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """An empty variable of a script would be found in every text."""
    org = await service.organization(name="Ada")
    await join(service, org, ADA)
    before = contents(service.conninfo)
    done = await erase(service, tmp_path, *arguments)
    assert (done.code, arguments[0] in done.err) == (2, True), done.err
    assert contents(service.conninfo) == before


async def test_a_person_can_be_erased_again(conninfo: str, tmp_path: Path) -> None:
    async with running_service(conninfo) as service:
        org = await service.organization()
        for _ in range(2):
            member = await join(service, org, ADA)
            await remove_member(org.owner, member)
            assert (await erase(service, tmp_path, "--user", ADA)).code == 0
            assert refusal(await ada(service, org=org.id).get(WHOAMI)) == REJECTED


async def test_a_restored_backup_is_erased_again(
    conninfo: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    async with running_service(conninfo, **ENABLED) as service:
        first, second = await leave_traces(service)
        made = await asyncio.to_thread(run_script, "backup.sh", tmp_path, conninfo=conninfo)
        assert made.returncode == 0, made.stderr
        assert (await erase(service, tmp_path, "--email", ADDRESS)).code == 0
        trail = (await admin(service, conninfo, tmp_path, "export-audit")).out
        assert not any(text.lower() in _without_longer(trail, TEXTS) for text in TEXTS)
        with postgres.database(migrated=False) as copy:
            backup = made.stdout.strip()
            restored = await asyncio.to_thread(run_script, "restore.sh", backup, conninfo=copy)
            assert restored.returncode == 0, restored.stderr
            assert having(copy, *TEXTS).keys() >= TABLES
            again = ("after-restore", "--audit", "-")
            done = await admin(service, copy, tmp_path, *again, given=trail)
            assert done.code == 0, (done.out, done.err)
            assert having(copy, *TEXTS) == {}
            repeated = await admin(service, copy, tmp_path, *again, given=trail)
            assert repeated.code == 0, repeated.out
            identity = {"OIDC_ISSUER": service.issuer.url, "OIDC_AUDIENCE": AUDIENCE}
            async with running_app(copy, clock=service.clock, **identity) as client:
                there = Service(client, service.clock, service.issuer, copy)
                removed = await ada(there, org=second.id, role="owner").get(WHOAMI)
                assert refusal(removed) == REJECTED
                new = await ada(there, org=first.id, role="member").get(WHOAMI)
                assert new.status_code == 200, new.text

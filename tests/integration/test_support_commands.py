"""The commands of `tenantry admin` for support."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.support.cases import cases
from tests.support.command_runner import invoke_async
from tests.support.commands import SECRETS, Done
from tests.support.postgres import PostgresServer, as_url


class Shell(NamedTuple):
    """Runs operator commands on one database."""

    folder: Path
    database_url: str
    settings: Mapping[str, str] = MappingProxyType({})

    async def run(self, *arguments: str, typed: str = "") -> Done:
        """Run a command of ``tenantry admin``; with ``typed`` on a terminal."""
        values = {
            "DATABASE_URL": self.database_url,
            "API_KEY_PEPPER": SECRETS["API_KEY_PEPPER"],
            **self.settings,
        }
        return await invoke_async(
            "admin", *arguments, folder=self.folder, typed=typed or None, **values
        )

    async def done(self, *arguments: str) -> str:
        """Run a command that must succeed; return its stdout."""
        ended = await self.run(*arguments)
        assert ended.code == 0, ended
        return ended.out

    async def lines(self, *arguments: str) -> list[Any]:
        """Run a command with ``--json``; return the lines."""
        return [json.loads(line) for line in (await self.done(*arguments, "--json")).splitlines()]

    async def tenant(self, org_id: str, *options: str) -> None:
        """Create a tenant."""
        fixed = (
            "--id",
            org_id,
            "--name",
            org_id.title(),
            "--owner-email",
            f"Owner@{org_id}.example",
        )
        await self.done("create-tenant", *fixed, *options)

    async def key(self, org_id: str, *options: str) -> str:
        """Create a key; return its secret."""
        return (await self.done("create-key", "--org", org_id, "--name", "CI", *options)).strip()

    async def key_id(self, secret: str) -> str:
        """Return the id of a key."""
        [match] = await self.lines("find", f"{secret[:13]}...{secret[-4:]}")
        return str(match["key"]["id"])


@pytest.fixture(scope="module")
async def shell(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> AsyncIterator[Shell]:
    """A database with the tenants ``acme``, on the plan ``pro`` with a customer, and ``globex``."""
    with postgres.database() as conninfo:
        shell = Shell(tmp_path_factory.mktemp("shell"), as_url(conninfo))
        await shell.tenant("acme", "--plan", "pro", "--customer", "cus_Acme1")
        await shell.tenant("globex")
        yield shell


async def test_keys_of_another_prefix_are_made_and_found(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    with postgres.database() as conninfo:
        old = Shell(tmp_path, as_url(conninfo), {"KEY_PREFIX": "old"})
        new = Shell(
            tmp_path, as_url(conninfo), {"KEY_PREFIX": "acme", "FORMER_KEY_PREFIXES": "old"}
        )
        await old.tenant("acme")
        secrets = [await shell.key("acme", "--owner") for shell in (old, new)]
        assert [secret.partition("_")[0] for secret in secrets] == ["old", "acme"]
        for secret in secrets:
            start = secret[: secret.rindex("_") + 5]
            for text in (start, f"{start}...{secret[-4:]}", start[-4:]):
                [match] = await new.lines("find", text)
                assert match["key"]["start"] == start
            refused = await new.run("find", secret)
            assert (refused.code, secret in refused.out + refused.err) == (2, False)


@cases(
    ("options", "expected"),
    [
        ((), ["globex", "acme"]),
        (("--limit", "1"), ["globex"]),
        (("--plan", "pro"), ["acme"]),
        (("--status", "active"), []),
        (("--access", "none"), ["globex"]),
        (("--search", "ACME1"), ["acme"]),
        (("--search", "@GLOBEX"), ["globex"]),
        (("--suspended",), []),
        (("--not-suspended", "--access", "full"), ["acme"]),
    ],
)
async def test_list_is_filtered(
    shell: Shell, options: tuple[str, ...], expected: list[str]
) -> None:
    assert [tenant["id"] for tenant in await shell.lines("list-tenants", *options)] == expected


async def test_list_is_a_table_for_people(shell: Shell) -> None:
    heading, row, _ = (await shell.done("list-tenants")).splitlines()
    assert heading.startswith("ID      NAME    PLAN  SUBSCRIPTION  LIMITS OF  SUSPENDED")
    assert row.split()[:6] == ["globex", "Globex", "free", "none", "free", "-"]
    nothing = await shell.run("list-tenants", "--search", "%")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "No organization matches.\n")


@pytest.mark.parametrize(
    ("text", "found_by"),
    [("cus_Acme1", "customer"), ("owner@ACME.example", "email"), ("acme", "id")],
)
async def test_tenant_is_found_by_what_support_is_told(
    shell: Shell, text: str, found_by: str
) -> None:
    [match] = await shell.lines("find", text)
    assert (match["tenant"]["id"], match["foundBy"]) == ("acme", found_by)


async def test_tenant_is_found_by_a_key(shell: Shell) -> None:
    secret = await shell.key("globex", "--scope", "projects:read")
    key_id = await shell.key_id(secret)
    for text in (key_id, secret[:13], secret[9:13], secret[-4:]):
        found = await shell.lines("find", text)
        assert ("globex", key_id) in [(match["tenant"]["id"], match["given"]) for match in found], (
            text
        )
    shown = await shell.done("find", key_id)
    assert f"{key_id} ({secret[:13]}...{secret[-4:]}, active)" in shown


async def test_tenant_is_found_by_its_people(shell: Shell) -> None:
    await shell.tenant("umbrella", "--owner-id", "user_alice")
    person = ("umbrella", "https://login.example", "user_alice")
    with psycopg.connect(shell.database_url) as connection:
        connection.execute(
            "INSERT INTO user_profiles (org_id, issuer, subject, name, email, seen_at) "
            "VALUES (%s, %s, %s, 'Alice Abernathy', 'Alice@home.example', now())",
            person,
        )
        query = "INSERT INTO memberships (tenant_id, issuer, subject, role) VALUES (%s, %s, %s, 'owner') RETURNING id"
        [member_id] = connection.execute(query, person).fetchone() or ("",)
    for text, found_by in (
        (member_id, "member"),
        ("user_alice", "user"),
        ("alice@HOME.example", "member_email"),
        ("alice abernathy", "member_name"),
    ):
        [match] = await shell.lines("find", text)
        assert (match["tenant"]["id"], match["foundBy"]) == ("umbrella", found_by)
    with psycopg.connect(shell.database_url) as connection:
        connection.execute("UPDATE memberships SET removed_at = now() WHERE id = %s", (member_id,))
    assert (await shell.run("find", "user_alice")).code == 5


async def test_nothing_found_exits_with_5(shell: Shell) -> None:
    done = await shell.run("find", "cus_unknown")
    assert (done.code, done.out) == (5, "")
    assert done.err.startswith(
        "Nothing found for cus_unknown. Looked for the id of an organization, "
    )


async def test_whole_secret_is_refused_and_not_repeated(shell: Shell) -> None:
    secret = await shell.key("globex", "--scope", "projects:read")
    for command in (("find",), ("revoke-key",), ("list-tenants", "--search")):
        done = await shell.run(*command, secret)
        assert done.code == 2
        assert secret not in done.out + done.err


async def test_key_is_revoked_once_and_recorded_as_the_operators_act(shell: Shell) -> None:
    key_id = await shell.key_id(await shell.key("globex", "--scope", "projects:read"))
    revoked = await shell.run("revoke-key", key_id, "--yes")
    assert (revoked.code, revoked.out) == (0, "")
    assert revoked.err.startswith(f"Revoked {key_id} of globex in the database ")
    again = json.loads(await shell.done("revoke-key", key_id, "--yes", "--json"))
    assert again["status"] == "revoked"
    with psycopg.connect(shell.database_url) as connection:
        query = "SELECT action, actor_kind FROM audit_events WHERE target_id = %s ORDER BY at"
        rows = connection.execute(query, (key_id,)).fetchall()
    assert rows == [("api_key.created", "operator"), ("api_key.revoked", "operator")]


async def test_revocation_asks_first(shell: Shell) -> None:
    key_id = await shell.key_id(await shell.key("globex", "--scope", "projects:read"))
    assert (await shell.run("revoke-key", key_id)).code == 2
    declined = await shell.run("revoke-key", key_id, typed="n\n")
    assert declined.code == 1
    assert (
        f'Revoke "CI" of globex ({(await shell.lines("find", key_id))[0]["key"]["start"]}'
        in declined.err
    )
    assert (await shell.lines("find", key_id))[0]["key"]["status"] == "active"
    assert (await shell.run("revoke-key", "key_nobody", "--yes")).code == 5


async def test_last_owner_key_needs_force(shell: Shell) -> None:
    key_id = await shell.key_id(await shell.key("acme", "--owner"))
    refused = await shell.run("revoke-key", key_id, "--yes")
    assert refused.code == 1
    assert "--force" in refused.err
    assert (await shell.run("revoke-key", key_id, "--yes", "--force")).code == 0


async def test_suspension_is_shown_until_the_tenant_is_resumed(shell: Shell) -> None:
    await shell.tenant("hooli")
    suspended = await shell.run("suspend", "hooli", "--yes")
    assert (suspended.code, suspended.out) == (0, "")
    assert suspended.err.startswith("Suspended hooli in the database ")
    assert suspended.err.endswith(": its credentials are rejected.\n")
    assert json.loads(await shell.done("show-tenant", "hooli", "--json"))["suspended"] is True
    assert "suspended           true" in await shell.done("show-tenant", "hooli")
    assert [tenant["id"] for tenant in await shell.lines("list-tenants", "--suspended")] == [
        "hooli"
    ]
    again = json.loads(await shell.done("suspend", "hooli", "--yes", "--json"))
    resumed = json.loads(await shell.done("resume", "hooli", "--json"))
    assert (again["suspended"], resumed["suspended"]) == (True, False)
    with psycopg.connect(shell.database_url) as connection:
        query = "SELECT action, actor_kind, after->>'suspended' FROM audit_events WHERE org_id = 'hooli' ORDER BY at"
        rows = connection.execute(query).fetchall()
    assert rows[1:] == [
        ("tenant.updated", "operator", "true"),
        ("tenant.updated", "operator", "false"),
    ]


@pytest.mark.parametrize("org_id", ["nobody", "no tenant", "\udcff"])
async def test_unknown_tenant_exits_with_5(shell: Shell, org_id: str) -> None:
    for command in (("suspend", "--yes"), ("resume",), ("show-tenant",), ("end-tenant", "--yes")):
        done = await shell.run(*command, org_id)
        assert (done.code, done.out, done.err) == (5, "", "There is no such tenant.\n")


async def test_parked_event_is_placed_by_its_command(shell: Shell) -> None:
    with psycopg.connect(shell.database_url) as connection:
        connection.execute(
            "INSERT INTO billing_events (id, arrival, type, created, received_at, outcome, customer_id, "
            "document) VALUES ('evt_1', 1, 'customer.subscription.updated', 1767268800, now(), 'parked', 'cus_New', "
            """'{"reason": "Waits: customer cus_New is not known yet.", "status": "active", """
            """"price_id": "price_pro"}')"""
        )
    [event] = await shell.lines("list-parked-events")
    assert event["command"] == "tenantry admin link cus_New --org ORG"
    assert event["command"] in await shell.done("list-parked-events")
    await shell.done(*event["command"].replace("ORG", "globex").split()[2:])
    assert json.loads(await shell.done("show-tenant", "globex", "--json"))["plan"] == "pro"
    nothing = await shell.run("list-parked-events")
    assert (nothing.code, nothing.out, nothing.err) == (
        0,
        "",
        "Every event belongs to an organization.\n",
    )


@pytest.mark.parametrize(
    ("options", "plan"), [(("--plan", "pro"), "pro"), (("--plan", "free"), None), ((), None)]
)
async def test_plan_that_the_operator_gives_a_new_tenant_is_in_the_audit_trail(
    shell: Shell, options: tuple[str, ...], plan: str | None
) -> None:
    tenant = f"plan-{len(options)}-{plan}"
    await shell.tenant(tenant, *options)
    with psycopg.connect(shell.database_url) as connection:
        query = "SELECT action, actor_kind, after FROM audit_events WHERE org_id = %s ORDER BY id"
        created, *grants = connection.execute(query, (tenant,)).fetchall()
    assert created[:2] == ("tenant.created", "operator")
    given = [(action, actor, after["plan"]) for action, actor, after in grants]
    assert given == ([] if plan is None else [("grant.set", "operator", plan)])


async def test_grants_are_set_listed_and_ended(shell: Shell) -> None:
    await shell.tenant("initech")
    set_grant = await shell.run(
        *("grant", "initech", "contract-2027", "--plan", "business", "--until", "365d"),
        *("--limit", "projects=900", "--limit", "api_keys=500", "--reason", "Contract 2027-014"),
    )
    assert set_grant.err.startswith("Set grant contract-2027 of initech in the database ")
    [listed] = json.loads(await shell.done("grants", "initech", "--json"))
    assert (listed["plan"], listed["limits"]) == ("business", {"projects": 900, "apiKeys": 500})
    table = await shell.done("grants", "initech")
    assert "contract-2027" in table
    assert "plan business" in table
    assert "projects 900" in table
    explained = await shell.run("show-tenant", "initech")
    assert "By contract: Contract 2027-014." in explained.out
    ended = await shell.done("grant", "initech", "contract-2027", "--end", "--json")
    assert json.loads(ended)["endedAt"] is not None
    nothing = await shell.run("grants", "initech")
    assert (nothing.code, nothing.err) == (0, "initech has no grants.\n")


@cases(
    ("arguments", "code", "message"),
    [
        ((), 2, "Pass either --end, or the terms of the grant."),
        (("--end", "--plan", "pro"), 2, "Pass either --end, or the terms of the grant."),
        (("--plan", "pro"), 2, "Missing option '--reason'."),
        (("--limit", "projects", "--reason", "r"), 2, "give NAME=N with a whole number"),
        (("--feature", "exports=", "--reason", "r"), 2, "give NAME=N with a whole number"),
        (("--plan", "gold", "--reason", "r"), 2, "'gold' is not in the plan catalog"),
        (("--feature", "sso", "--reason", "r"), 2, "unknown feature 'sso'"),
        (("--end",), 5, "There is no such grant."),
    ],
)
async def test_grants_with_wrong_terms_are_refused(
    shell: Shell, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = await shell.run("grant", "globex", "contract", *arguments)
    assert message in done.err
    assert done.code == code

"""The commands for operators. Those that serve or work run as processes, the others in this one."""

import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.support import other_program
from tests.support.cases import cases
from tests.support.command_runner import invoke, invoke_async
from tests.support.commands import SECRETS, Done, run, running
from tests.support.deployment import CREATE_ACME
from tests.support.documentation import block_of
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, as_url

PEPPER: Final = {"API_KEY_PEPPER": SECRETS["API_KEY_PEPPER"]}


@pytest.fixture(scope="module")
async def with_tenant(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> AsyncIterator[str]:
    """The address of a database with the tenant ``acme``."""
    with postgres.database() as conninfo:
        made = await invoke_async(
            *CREATE_ACME, folder=tmp_path_factory.mktemp("tenant"), DATABASE_URL=as_url(conninfo)
        )
        assert (made.code, made.err) == (0, "")
        yield as_url(conninfo)


@pytest.fixture
def shop(postgres: PostgresServer) -> Iterator[str]:
    """The address of another program's database."""
    with postgres.database(migrated=False) as conninfo:
        other_program.fill(conninfo)
        yield as_url(conninfo)


async def create_key(folder: Path, database_url: str, *arguments: str) -> Done:
    fixed = ("admin", "create-key", "--org", "acme", "--name", "key")
    return await invoke_async(
        *fixed, *arguments, folder=folder, DATABASE_URL=database_url, **PEPPER
    )


async def test_created_tenant_is_shown_as_the_api_returns_it(
    tmp_path: Path, database_url: str
) -> None:
    options = ("--owner-id", "user_7", "--customer", "cus_7", "--plan", "pro")
    made = await invoke_async(*CREATE_ACME, *options, folder=tmp_path, DATABASE_URL=database_url)
    assert (made.code, made.err) == (0, "")
    tenant = json.loads(made.out)
    assert tenant == {
        "id": "acme",
        "name": "Acme",
        "plan": "pro",
        "subscriptionStatus": "none",
        "currentPeriodEnd": None,
        "cancelAtPeriodEnd": False,
        "cancelAt": None,
        "endsAt": None,
        "seats": None,
        "access": {
            "state": "full",
            "plan": "pro",
            "until": None,
            "reason": "By contract: the plan was chosen when the organization was created.",
        },
        "stripeCustomerId": "cus_7",
        "ownerId": "user_7",
        "createdAt": tenant["createdAt"],
        "updatedAt": tenant["createdAt"],
        "ownerEmail": "owner@acme.example",
        "suspended": False,
    }
    shown = await invoke_async(
        "admin", "show-tenant", "acme", "--json", folder=tmp_path, DATABASE_URL=database_url
    )
    assert (shown.code, shown.err, json.loads(shown.out)) == (0, "", tenant)
    for_people = await invoke_async(
        "admin", "show-tenant", "acme", folder=tmp_path, DATABASE_URL=database_url
    )
    said = dict(line.split(maxsplit=1) for line in for_people.out.splitlines())
    assert list(said) == list(tenant)
    assert (said["cancelAtPeriodEnd"], said["currentPeriodEnd"], said["plan"]) == (
        "false",
        "-",
        "pro",
    )
    again = await invoke_async(*CREATE_ACME, folder=tmp_path, DATABASE_URL=database_url)
    assert (again.code, again.out) == (1, "")
    assert "exists" in again.err


async def test_only_the_secret_is_on_stdout_and_it_works(tmp_path: Path, with_tenant: str) -> None:
    made = await create_key(tmp_path, with_tenant, "--owner")
    secret = made.out.removesuffix("\n")
    assert (made.code, made.err) == (0, "")
    assert secret.startswith("svc_live_")
    assert len(secret) == 58
    test = await create_key(
        tmp_path,
        with_tenant,
        "--scope",
        "projects:read",
        "--scope",
        "a:b",
        "--mode",
        "test",
        "--expires-at",
        "2099-01-01T00:00:00+01:00",
    )
    assert (test.code, test.err) == (0, "")
    assert test.out.startswith("svc_test_")
    with psycopg.connect(with_tenant) as connection:
        rows = connection.execute(
            "SELECT access_level, mode, scopes, expires_at::text, created_by FROM api_keys "
            "WHERE left(start, 13) = ANY(%s) ORDER BY created_at",
            ([secret[:13], test.out[:13]],),
        ).fetchall()
    assert [row[:3] for row in rows] == [
        ("OWNER", "live", ["*:*"]),
        ("SCOPED", "test", ["projects:read", "a:b"]),
    ]
    assert rows[1][3].startswith(("2098-12-31", "2099-01-01"))
    assert {row[4] for row in rows} == {"operator"}


WRONG_USE = {
    "neither scope nor owner": (),
    "scope and owner": ("--owner", "--scope", "a:b"),
    "no scope": ("--scope", "everything"),
    "unknown mode": ("--owner", "--mode", "prod"),
    "no time": ("--owner", "--expires-at", "soon"),
    "name that turns text around": ("--owner", "--name", "a\u202eb"),
    "past": ("--owner", "--expires-at", "2020-01-01T00:00:00Z"),
    "unknown option": ("--owner", "--colour", "red"),
}


@cases("arguments", WRONG_USE.values(), ids=WRONG_USE)
async def test_wrong_use_exits_with_2(
    tmp_path: Path, with_tenant: str, arguments: tuple[str, ...]
) -> None:
    done = await create_key(tmp_path, with_tenant, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err


@cases(
    "options",
    [
        ("--id", "not an id", "--name", "x", "--owner-email", "a@b.example"),
        ("--id", "x", "--name", "x", "--owner-email", "missing"),
        ("--id", "x", "--name", "x"),
        ("--id", "x", "--name", "x", "--owner-email", "a@b.example", "--plan", "gold"),
        ("--id", "x", "--name", "a\u202eb", "--owner-email", "a@b.example"),
    ],
)
async def test_tenant_with_a_faulty_field_exits_with_2(
    tmp_path: Path, database_url: str, options: tuple[str, ...]
) -> None:
    done = await invoke_async(
        "admin", "create-tenant", *options, folder=tmp_path, DATABASE_URL=database_url
    )
    assert (done.code, done.out) == (2, "")


async def test_missing_tenant_exits_with_5(tmp_path: Path, database_url: str) -> None:
    shown = await invoke_async(
        "admin", "show-tenant", "acme", "--json", folder=tmp_path, DATABASE_URL=database_url
    )
    assert (shown.code, shown.out) == (5, "")
    made = await create_key(tmp_path, database_url, "--owner")
    assert (made.code, made.out) == (5, "")


async def test_ended_tenant_is_missing(tmp_path: Path, database_url: str) -> None:
    await invoke_async(*CREATE_ACME, folder=tmp_path, DATABASE_URL=database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE tenants SET deleted_at = now()")
    made = await create_key(tmp_path, database_url, "--owner")
    assert (made.code, made.out) == (5, "")


async def test_key_is_not_created_without_the_pepper(tmp_path: Path, with_tenant: str) -> None:
    arguments = ("admin", "create-key", "--org", "acme", "--name", "key", "--owner")
    done = await invoke_async(*arguments, folder=tmp_path, DATABASE_URL=with_tenant)
    assert (done.code, done.out) == (1, "")
    assert "API_KEY_PEPPER: is missing" in done.err


async def test_database_out_of_reach_is_reported_without_traceback(tmp_path: Path) -> None:
    nowhere = f"postgresql://missing:hunter2hunter2@127.0.0.1:{free_port()}/none"
    for arguments, code in (
        (CREATE_ACME, 6),
        (("migrate",), 1),
        (("admin", "show-tenant", "acme"), 6),
    ):
        done = await invoke_async(*arguments, folder=tmp_path, DATABASE_URL=nowhere)
        assert (done.code, done.out) == (code, "")
        assert "DATABASE_URL" in done.err
        assert "Traceback" not in done.err
        assert "hunter2" not in done.err


async def test_settings_are_read_from_the_env_file_too(tmp_path: Path, with_tenant: str) -> None:
    (tmp_path / ".env").write_text(
        f"DATABASE_URL={with_tenant}\nAPI_KEY_PEPPER={PEPPER['API_KEY_PEPPER']}\n"
    )
    done = await invoke_async(
        "admin", "create-key", "--org", "acme", "--name", "key", "--owner", folder=tmp_path
    )
    assert (done.code, done.err) == (0, "")


async def test_migrate_prints_the_revisions(tmp_path: Path, postgres: PostgresServer) -> None:
    with postgres.database(migrated=False) as conninfo:
        first, second = [
            await invoke_async("migrate", folder=tmp_path, DATABASE_URL=as_url(conninfo))
            for _ in range(2)
        ]
    assert (first.code, second.code) == (0, 0)
    assert first.out.startswith("schema: none -> ")
    assert second.out.endswith("up to date\n")


@pytest.mark.parametrize(
    "command",
    [
        "migrate",
        "migrate --grant-to postgres",
        "serve",
        "serve --no-migrate",
        "worker",
        "admin show-tenant acme",
    ],
)
def test_database_of_another_program_is_rejected_in_one_sentence(
    tmp_path: Path, shop: str, command: str
) -> None:
    before = other_program.dump(shop)
    values = {"DATABASE_URL": f"{shop}&password=hunter2", "PORT": "0"}
    done = invoke(*command.split(), folder=tmp_path, **values, **SECRETS)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done
    assert done.err.startswith(
        "DATABASE_URL: tenantry wants a database of its own, and this one (user="
    )
    assert done.err.endswith(
        f" has tables of others, {other_program.FOUND}: create a database for tenantry alone, and name that one.\n"
    )
    assert "hunter2" not in done.err
    assert other_program.dump(shop) == before


async def test_migrate_grants_a_login_the_roles_or_prints_the_statements(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    with (
        postgres.database(migrated=False) as conninfo,
        psycopg.connect(conninfo, autocommit=True) as superuser,
    ):
        for role in ("grants", "is_granted"):
            superuser.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        superuser.execute("GRANT ALL ON SCHEMA public TO grants")
        url = as_url(make_conninfo(conninfo, user="grants"))
        arguments = ("migrate", "--grant-to", "is_granted")
        refused = await invoke_async(*arguments, folder=tmp_path, DATABASE_URL=url)
        superuser.execute(refused.out.encode())
        done = await invoke_async(*arguments, folder=tmp_path, DATABASE_URL=url)
        url = as_url(make_conninfo(conninfo, user="is_granted"))
        made = await invoke_async(*CREATE_ACME, folder=tmp_path, DATABASE_URL=url)
        superuser.execute("DROP OWNED BY grants, is_granted")
        superuser.execute("DROP ROLE grants, is_granted")
    assert (refused.code, "may not create or grant roles" in refused.err) == (1, True)
    assert (done.code, done.out.splitlines()[-1]) == (0, "role: is_granted may run the service")
    assert (made.code, json.loads(made.out)["id"]) == (0, "acme")


async def test_migrate_without_privileges_names_the_role_that_it_needs(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    with (
        postgres.database(migrated=False) as conninfo,
        psycopg.connect(conninfo, autocommit=True) as superuser,
    ):
        superuser.execute("CREATE ROLE creates_nothing LOGIN")
        url = as_url(make_conninfo(conninfo, user="creates_nothing"))
        done = await invoke_async("migrate", folder=tmp_path, DATABASE_URL=url)
        superuser.execute("DROP ROLE creates_nothing")
    assert (done.code, done.out) == (1, "")
    assert "permission denied for schema public" in done.err
    assert "whose role owns the tables" in done.err
    assert "LINE" not in done.err


async def test_grant_to_a_missing_login_is_an_error(tmp_path: Path, database_url: str) -> None:
    done = await invoke_async(
        "migrate", "--grant-to", "missing_role", folder=tmp_path, DATABASE_URL=database_url
    )
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("--grant-to: there is no role missing_role. Create it first")


async def test_serve_names_every_faulty_setting_in_one_message(tmp_path: Path) -> None:
    values = {
        "API_KEY_PEPPER": "short",
        "PORT": "x",
        "OIDC_ISSUER": "http://id.example",
        "WORKERS": "0",
    }
    values["DATABASE_URL"] = "embedded"
    done = await run("serve", folder=tmp_path, **values)
    assert (done.code, done.out) == (1, "")
    named = [line.split(":")[0].strip() for line in done.err.splitlines()[1:]]
    assert sorted(named) == [
        "API_KEY_PEPPER",
        "OIDC_AUDIENCE",
        "OIDC_ISSUER",
        "PORT",
        "PROVIDER_WEBHOOK_SECRET",
        "SESSION_SECRET",
        "WORKERS",
    ]
    assert "Traceback" not in done.err
    assert not (tmp_path / ".tenantry").exists()


async def test_guide_shows_what_serve_prints(tmp_path: Path) -> None:
    page, database = "how-to/configuration.md", {"DATABASE_URL": "embedded"}
    faulty = {"WORKERS": "0", "PROVIDER_WEBHOOK_SECRET": "short", "API_KEY_PEPPER": "changeme" * 5}
    done = await invoke_async("serve", folder=tmp_path, **database, **faulty)
    assert done == Done(1, "", block_of(page, "tenantry cannot start: 4 setting(s)"))
    kept = {name: value for name, value in SECRETS.items() if name != "API_KEY_PEPPER"}
    files = {
        "API_KEY_PEPPER_FILE": "/run/secrets/api_key_pepper",
        "SESSION_SECRET_FILE": "/run/secrets/session_secret",
    }
    done = await invoke_async("serve", folder=tmp_path, **database, **kept, **files)
    assert done == Done(1, "", block_of(page, "tenantry cannot start: 2 setting(s)"))


async def test_serve_reports_a_port_in_use(tmp_path: Path, database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = await run("serve", folder=tmp_path, DATABASE_URL=database_url, PORT=port, **SECRETS)
    assert (done.code, done.out) == (1, "")
    assert f"cannot listen on 127.0.0.1:{port}" in done.err


async def test_serve_reports_a_request_log_that_cannot_be_opened(tmp_path: Path) -> None:
    values = {**SECRETS, "DATABASE_URL": "postgresql://127.0.0.1:1/none"}
    done = await invoke_async(
        "serve", folder=tmp_path, LOG_REQUESTS_TO="missing/requests.log", **values
    )
    assert done == Done(
        1, "", "LOG_REQUESTS_TO: missing/requests.log cannot be opened: No such file or directory\n"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("command", [("serve", "--no-migrate"), ("worker",)], ids=" ".join)
async def test_each_line_of_a_json_log_is_an_object(
    tmp_path: Path, postgres: PostgresServer, command: tuple[str, ...]
) -> None:
    with postgres.database(migrated=False) as conninfo:
        values = {
            "DATABASE_URL": as_url(conninfo),
            "PORT": str(free_port()),
            "DRAIN_SECONDS": "0",
            **SECRETS,
        }
        async with running(*command, folder=tmp_path, LOG_FORMAT="json", **values) as service:
            if "serve" in command:
                await service.until("There is no schema yet, and this release needs ", "err")
                assert (await invoke_async("migrate", folder=tmp_path, **values)).code == 0
            await service.until(
                "tenantry is ready at" if "serve" in command else "worker: started", "err"
            )
            assert await service.end(signal.SIGTERM) == 0
    assert service.text["out"] == ""
    assert "Traceback" not in service.text["err"]
    assert all(
        {"time", "level", "logger", "message"} <= json.loads(line).keys()
        for line in service.text["err"].splitlines()
    )


async def test_worker_rejects_faulty_settings(tmp_path: Path) -> None:
    done = await invoke_async("worker", folder=tmp_path, DATABASE_URL="embedded")
    assert (done.code, done.out) == (1, "")
    assert "PROVIDER_WEBHOOK_SECRET: is missing" in done.err


@cases(
    "command",
    [
        "serve",
        "worker",
        "migrate",
        "doctor",
        "reconcile",
        "backfill --since 2026-11-20T00:00:00Z",
        "admin create-tenant --id a --name A --owner-email a@x.example",
        "admin show-tenant a",
        "admin create-key --org a --name key --owner",
        "admin replay-events",
        "admin explain-tenant a",
    ],
)
def test_no_command_creates_a_database_by_default(tmp_path: Path, command: str) -> None:
    done = invoke(*command.split(), folder=tmp_path, **SECRETS)
    assert (done.code, "DATABASE_URL" in done.err + done.out) == (2, True)
    assert list(tmp_path.rglob("postgres*")) == []


async def test_operator_verifies_an_owner_address(tmp_path: Path, database_url: str) -> None:
    await invoke_async(*CREATE_ACME, folder=tmp_path, DATABASE_URL=database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE tenants SET owner_email = 'new@acme.example' WHERE id = 'acme'")
    done = await invoke_async(
        "admin", "verify-owner-address", "acme", folder=tmp_path, DATABASE_URL=database_url
    )
    assert (done.code, done.out, done.err) == (0, "new@acme.example\n", "")
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT verified_email FROM tenants").fetchall() == [
            ("new@acme.example",)
        ]
    missing = await invoke_async(
        "admin", "verify-owner-address", "missing", folder=tmp_path, DATABASE_URL=database_url
    )
    assert missing.code == 5


async def test_customers_are_linked_moved_and_unlinked(tmp_path: Path, database_url: str) -> None:
    async def admin(*arguments: str) -> Done:
        return await invoke_async("admin", *arguments, folder=tmp_path, DATABASE_URL=database_url)

    for tenant in ("acme", "beta"):
        made = await admin(
            "create-tenant", "--id", tenant, "--name", tenant, "--owner-email", "owner@x.example"
        )
        assert made.code == 0
    linked = await admin("link", "cus_1", "--org", "acme")
    assert (linked.code, linked.out, linked.err) == (0, "cus_1  no organization -> acme\n", "")
    taken = await admin("link", "cus_1", "--org", "beta")
    assert (taken.code, taken.out) == (1, "")
    assert "Customer cus_1 belongs to another tenant: acme." in taken.err
    moved = await admin("move", "cus_1", "--org", "beta", "--yes", "--json")
    assert json.loads(moved.out) == {"customerId": "cus_1", "movedFrom": "acme", "movedTo": "beta"}
    unlinked = await admin("unlink", "cus_1", "--yes")
    assert (unlinked.code, unlinked.out) == (0, "cus_1  beta -> no organization\n")
    again = await admin("unlink", "cus_1", "--yes")
    assert (again.code, again.out, again.err) == (5, "", "There is no such linked customer.\n")

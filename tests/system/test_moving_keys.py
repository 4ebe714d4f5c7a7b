"""The guide to moving keys, followed with keys of each system, as its reader would."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from secrets import choice, token_bytes, token_hex
from typing import Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.app import PEPPER
from tests.support.documentation import ROOT
from tests.support.drf_keys import make_project
from tests.support.postgres import PostgresServer, as_url
from tests.support.required import debian_program, node, npm_dependency
from tests.support.service import PROJECTS, TENANTS, running_service

GUIDE: Final = ROOT / "docs" / "how-to" / "move-keys.md"
BETTER_AUTH: Final = ROOT / "bench" / "baselines" / "better_auth_keys"
KEYS: Final = 20
SANCTUM_TABLE: Final = """
CREATE TABLE personal_access_tokens (
    id             bigserial PRIMARY KEY,
    tokenable_type varchar(255) NOT NULL,
    tokenable_id   bigint NOT NULL,
    name           text NOT NULL,
    token          varchar(64) NOT NULL UNIQUE,
    abilities      text,
    last_used_at   timestamp(0) without time zone,
    expires_at     timestamp(0) without time zone,
    created_at     timestamp(0) without time zone,
    updated_at     timestamp(0) without time zone
)
"""
"""The table of Sanctum's migration, as Laravel makes it in PostgreSQL."""
_BLOCK: Final = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_SETTING: Final = re.compile(r"^([A-Z_]+)='?(.*?)'?$", re.MULTILINE)
_LIBPQ: Final = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


@pytest.fixture
def old_database(postgres: PostgresServer) -> Iterator[str]:
    """The database of the other system."""
    with postgres.database(migrated=False) as conninfo:
        yield conninfo


def section(title: str) -> tuple[dict[str, str], str]:
    """The settings and the commands of a section of the guide."""
    [text] = [part for part in GUIDE.read_text().split("\n## ") if part.startswith(f"{title}\n")]
    settings, commands = _BLOCK.findall(text)
    return dict(_SETTING.findall(settings)), commands


async def follow(
    title: str, conninfo: str, folder: Path, secrets: list[str], org_id: str, **values: str
) -> None:
    """Follow a section in a folder: every key is accepted, before and after a second import."""
    settings, commands = section(title)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DATABASE_URL": as_url(conninfo),
        "API_KEY_PEPPER": PEPPER,
        **settings,
        **values,
    }
    run = partial(subprocess.run, ["sh", "-ec", commands], cwd=folder, env=environment, check=False)
    async with running_service(conninfo, **settings) as service:
        tenant = {"name": "Acme", "ownerEmail": "ada@acme.example"}
        await service.operator.put(f"{TENANTS}/{org_id}", tenant)
        for summary in (
            f"{len(secrets)} keys imported; 0 imported",
            f"0 keys imported; {len(secrets)} ",
        ):
            done = run(capture_output=True, text=True)
            assert (done.returncode, done.stdout.startswith(summary)) == (0, True), done
            answers = [await service.caller(secret).get(PROJECTS) for secret in secrets]
            assert {answer.status_code for answer in answers} == {200}
        headers = {"Authorization": f"Api-Key {secrets[0]}"}
        answer = await service.anonymous.call("GET", PROJECTS, headers=headers)
        assert answer.status_code == (200 if "API_KEY_HEADER" in settings else 401)


async def test_keys_of_djangorestframework_api_key(conninfo: str, tmp_path: Path) -> None:
    secrets = make_project(tmp_path, KEYS)
    await follow("From djangorestframework-api-key", conninfo, tmp_path, secrets, "acme")


async def test_keys_of_better_auth(conninfo: str, old_database: str, tmp_path: Path) -> None:
    debian_program("psql", "postgresql-client")
    org_id, secrets = better_auth_keys(old_database)
    old = {"BETTER_AUTH_DATABASE": as_url(old_database)}
    await follow("From better-auth", conninfo, tmp_path, secrets, org_id, **old)


def better_auth_keys(database: str) -> tuple[str, list[str]]:
    """Let better-auth make an organization with keys; return its id and the keys."""
    npm_dependency(BETTER_AUTH, "better-auth")
    parts = {name: str(value) for name, value in conninfo_to_dict(database).items()}
    variables = {_LIBPQ[name]: value for name, value in parts.items() if name in _LIBPQ}
    made = subprocess.run(
        [node(), "--input-type=module", "-"],
        input=(ROOT / "tests" / "support" / "better_auth_keys.js").read_text(),
        cwd=BETTER_AUTH,
        env={**os.environ, **variables, "NUMBER": f"{KEYS}", "NODE_ENV": "production"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    keys = json.loads(made.stdout)
    return keys["orgId"], keys["secrets"]


@pytest.mark.parametrize("prefix", ["", "acme_"])
async def test_keys_of_laravel_sanctum(
    conninfo: str, old_database: str, tmp_path: Path, prefix: str
) -> None:
    debian_program("psql", "postgresql-client")
    secrets = sanctum_keys(old_database, prefix)
    old = {"LARAVEL_DATABASE": as_url(old_database)}
    await follow("From Laravel Sanctum", conninfo, tmp_path, secrets, "42", **old)


def sanctum_keys(database: str, prefix: str) -> list[str]:
    """Store keys as Sanctum 4 does (`HasApiTokens::createToken`), with PHP's hashes; return the
    keys. ``prefix`` is the setting ``sanctum.token_prefix``.
    """
    made = subprocess.run(
        [debian_program("php", "php-cli"), ROOT / "tests" / "support" / "sanctum_keys.php"],
        env={"PREFIX": prefix, "NUMBER": f"{KEYS}"},
        capture_output=True,
        text=True,
        check=True,
    )
    keys = json.loads(made.stdout)
    with psycopg.connect(database) as connection:
        connection.execute(SANCTUM_TABLE)
        connection.cursor().executemany(
            "INSERT INTO personal_access_tokens (id, tokenable_type, tokenable_id, name, token, abilities, created_at)"
            " VALUES (%(id)s, 'App\\Models\\Team', 42, 'ci', %(token)s, '[\"*\"]', now())",
            keys,
        )
    return [key["plainTextToken"] for key in keys]


async def test_keys_in_the_form_of_unkey(conninfo: str, tmp_path: Path) -> None:
    secrets = ["acme_" + "".join(choice(_BASE58) for _ in range(22)) for _ in range(KEYS)]
    rows = [
        {
            "id": f"key_{number}",
            "hash": base64.b64encode(hashlib.sha256(secret.encode()).digest()).decode(),
            "start": secret[:9],
            "name": None,
            "owner_id": "user_1",
            "meta": '{"plan":"pro"}',
            "expires": None,
            "enabled": 1,
            "created_at_m": 1700000000000,
            "deleted_at_m": None,
        }
        for number, secret in enumerate(secrets)
    ]
    (tmp_path / "keys.json").write_text(json.dumps(rows))
    await follow("From Unkey", conninfo, tmp_path, secrets, "acme")


async def test_keys_of_a_table_of_ones_own(
    conninfo: str, old_database: str, tmp_path: Path
) -> None:
    debian_program("psql", "postgresql-client")
    secrets = [f"sk_live_{token_hex(20)}" for _ in range(KEYS)]
    with psycopg.connect(old_database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE customer_keys (id serial, account text, label text, key_hash bytea, "
            "created_at timestamptz DEFAULT now(), revoked_at timestamptz)"
        )
        cursor.executemany(
            "INSERT INTO customer_keys (account, label, key_hash, revoked_at) "
            "VALUES ('acme', 'CI', %s, %s)",
            [
                *((hashlib.sha256(secret.encode()).digest(), None) for secret in secrets),
                (token_bytes(32), "2024-01-01T00:00:00Z"),
            ],
        )
    old = {"OLD_DATABASE": as_url(old_database)}
    await follow("From a table of your own", conninfo, tmp_path, secrets, "acme", **old)

"""A request sent after a revocation is rejected: by four processes, under load, every time."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_bytes
from typing import Final, NamedTuple

import psycopg
import pytest

from tenantry.domain.api_keys import DEFAULT_FORMAT, Pepper, shown_parts
from tenantry.domain.permissions import Mode
from tests.support import figures
from tests.support.caching_service import READY
from tests.support.commands import SECRETS, running
from tests.support.deployment import Deployment, deployed
from tests.support.figures import RecordProperty
from tests.support.hammer import Hammer, Revocation
from tests.support.issuer import AUDIENCE, Issuer, running_issuer
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, as_url
from tests.support.slow_request import SlowRequest

PATH: Final = "/api/v1/auth/verify/-"
PROJECTS: Final = "/api/v1/projects"
OPERATOR: Final = "operator-of-the-revocations-0123456789"
PEPPER: Final = Pepper(SECRETS["API_KEY_PEPPER"].encode())
SUSPEND: Final = b'{"name": "n", "ownerEmail": "a@b.example", "suspended": true}'
KEYS: Final = 500
"""How many keys are revoked."""
OTHERS: Final = 50
"""How many of anything else."""
CACHED: Final = 30
"""How many keys are revoked that a cache still accepts."""
WHAT: Final = "Requests sent after a revocation"
SLOW: Final = (
    "Requests whose body was completed after their key was revoked or their member removed"
)


class Site(NamedTuple):
    """A deployment whose plans limit nothing, its database, its settings, and its identity
    provider.
    """

    conninfo: str
    issuer: Issuer
    values: dict[str, str]
    deployment: Deployment


@pytest.fixture(scope="module")
async def site(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with postgres.database() as conninfo:
        async with running_issuer() as issuer:
            values = unlimited(conninfo, issuer, folder, "4")
            async with deployed(values["DATABASE_URL"], folder, **values) as deployment:
                yield Site(conninfo, issuer, values, deployment)


def unlimited(conninfo: str, issuer: Issuer, folder: Path, processes: str) -> dict[str, str]:
    """The settings of so many processes whose plans limit nothing."""
    plans = folder / "plans.toml"
    plans.write_text('[[plans]]\nid = "free"\n')
    return {
        **SECRETS,
        "DATABASE_URL": as_url(conninfo),
        "WORKERS": processes,
        "TENANTRY_PLANS": str(plans),
        "OPERATOR_TOKEN": OPERATOR,
        "OIDC_ISSUER": issuer.url,
        "OIDC_AUDIENCE": AUDIENCE,
        "RUN_JOBS": "false",
    }


_numbers = itertools.count(1)


def add_tenants(conninfo: str, number: int) -> list[tuple[str, str]]:
    """New tenants, each with an OWNER key: their ids and the secrets."""
    made = [
        (f"tenant-{next(_numbers)}", DEFAULT_FORMAT.compose(Mode.LIVE, token_bytes(32)))
        for _ in range(number)
    ]
    with psycopg.connect(conninfo) as connection, connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO tenants (id, name, owner_id, owner_email) VALUES (%s, 'n', 'missing', 'a@b.example')",
            [(tenant_id,) for tenant_id, _ in made],
        )
        cursor.executemany(
            "INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, start, last4, created_at, "
            "created_by) VALUES (%s, %s, %s, 'n', '{*:*}', 'OWNER', 'live', %s, %s, now(), 'operator')",
            [
                (
                    f"key-of-{tenant_id}",
                    tenant_id,
                    PEPPER.digest(secret.encode()),
                    *shown_parts(secret),
                )
                for tenant_id, secret in made
            ],
        )
    return made


def add_keys(
    conninfo: str, tenant_id: str, number: int, scopes: str = "{a:b}"
) -> list[tuple[str, str]]:
    """New keys of a tenant: their ids and secrets."""
    made = [
        (f"key-{next(_numbers)}", DEFAULT_FORMAT.compose(Mode.LIVE, token_bytes(32)))
        for _ in range(number)
    ]
    with psycopg.connect(conninfo) as connection, connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, start, last4, created_at, "
            "created_by) VALUES (%s, %s, %s, 'n', %s, 'SCOPED', 'live', %s, %s, now(), 'operator')",
            [
                (key_id, tenant_id, PEPPER.digest(secret.encode()), scopes, *shown_parts(secret))
                for key_id, secret in made
            ],
        )
    return made


def add_members(
    conninfo: str, issuer: Issuer, tenant_id: str, number: int
) -> list[tuple[str, str]]:
    """New members of a tenant: their ids and tokens, which last for an hour."""
    now = int(datetime.now(UTC).timestamp())
    made = []
    with psycopg.connect(conninfo) as connection:
        for _ in range(number):
            subject = f"user-{next(_numbers)}"
            row = connection.execute(
                "INSERT INTO memberships (issuer, subject, tenant_id, role, created_at) "
                "VALUES (%s, %s, %s, 'member', now()) RETURNING id",
                (issuer.url, subject, tenant_id),
            ).fetchone()
            assert row is not None
            made.append(
                (row[0], issuer.mint(claims={"sub": subject, "iat": now, "exp": now + 3600}))
            )
    return made


def planned_revocations(conninfo: str, number: int) -> tuple[list[Revocation], str]:
    """Keys to revoke, and the OWNER key that may do so."""
    ((tenant_id, owner),) = add_tenants(conninfo, 1)
    keys = add_keys(conninfo, tenant_id, number)
    return [
        Revocation(secret, "DELETE", f"/api/v1/api-keys/{key_id}") for key_id, secret in keys
    ], owner


async def send_during_revocations(
    base_url: str, revocations: Sequence[Revocation], owner: str
) -> tuple[int, int]:
    host, port = base_url.removeprefix("http://").split(":")
    tally = await Hammer(host, int(port), PATH).run(revocations, owner)
    assert tally.sent_afterwards >= tally.revoked
    return tally.sent_afterwards, tally.accepted


async def check_keys(site: Site, number: int, record_property: RecordProperty) -> None:
    """Revoke so many keys while clients use them; none is accepted afterwards."""
    revocations, owner = planned_revocations(site.conninfo, number)
    sent, accepted = await send_during_revocations(site.deployment.base_url, revocations, owner)
    figures.record(
        record_property, WHAT, {"requests": sent, "revocations": number}, {"accepted": accepted}
    )
    assert accepted == 0


async def check_tenants(site: Site, number: int, record_property: RecordProperty) -> None:
    """The same for the keys of so many tenants, one half suspended and the other ended."""
    tenants = add_tenants(site.conninfo, number)
    suspended, ended = tenants[: number // 2], tenants[number // 2 :]
    revocations = [
        Revocation(secret, "PUT", f"/api/v1/tenants/{tenant_id}", SUSPEND)
        for tenant_id, secret in suspended
    ]
    revocations += [
        Revocation(secret, "DELETE", f"/api/v1/tenants/{tenant_id}") for tenant_id, secret in ended
    ]
    sent, accepted = await send_during_revocations(site.deployment.base_url, revocations, OPERATOR)
    counts = {"requests": sent, "suspensions": len(suspended), "ends of tenants": len(ended)}
    figures.record(record_property, f"{WHAT}: tenants", counts, {"accepted": accepted})
    assert accepted == 0


async def check_members(site: Site, number: int, record_property: RecordProperty) -> None:
    """The same for the tokens of so many members who are removed."""
    ((tenant_id, owner),) = add_tenants(site.conninfo, 1)
    members = add_members(site.conninfo, site.issuer, tenant_id, number)
    revocations = [
        Revocation(token, "DELETE", f"/api/v1/members/{member_id}") for member_id, token in members
    ]
    sent, accepted = await send_during_revocations(site.deployment.base_url, revocations, owner)
    counts = {"requests": sent, "removals": len(members)}
    figures.record(record_property, f"{WHAT}: members", counts, {"accepted": accepted})
    assert accepted == 0


async def check_slow_bodies(site: Site, number: int, record_property: RecordProperty) -> None:
    """Revoke so many keys, and remove so many members, each while half of its request was sent:
    none is accepted.

    Each half-sent request is on a separate connection to any of the processes.
    """
    ((tenant_id, owner),) = add_tenants(site.conninfo, 1)
    keys = add_keys(site.conninfo, tenant_id, number, "{projects:*}")
    members = add_members(site.conninfo, site.issuer, tenant_id, number)
    revocations = [
        Revocation(secret, "DELETE", f"/api/v1/api-keys/{key_id}") for key_id, secret in keys
    ]
    revocations += [
        Revocation(token, "DELETE", f"/api/v1/members/{member_id}") for member_id, token in members
    ]
    statuses: list[int] = []
    async with site.deployment.client(owner) as client:
        for revocation in revocations:
            headers = {
                "Authorization": f"Bearer {revocation.credential}",
                "Content-Type": "application/json",
            }
            half = await SlowRequest.begin(
                site.deployment.base_url, "POST", PROJECTS, b'{"name": "late"}', headers
            )
            assert (await client.request(revocation.method, revocation.path)).status_code == 204
            statuses.append((await half.finish())[0])
        made = (await client.get(PROJECTS)).json()["data"]
    counts = {"requests": len(revocations), "revocations": len(keys), "removals": len(members)}
    accepted = sum(status not in (401, 403) for status in statuses)
    figures.record(record_property, SLOW, counts, {"accepted": accepted})
    assert (accepted, made) == (0, [])


async def test_revoked_key_is_never_accepted_again(
    site: Site, record_property: RecordProperty
) -> None:
    await check_keys(site, KEYS, record_property)


async def test_a_cache_of_ten_seconds_accepts_them(
    site: Site, tmp_path: Path, record_property: RecordProperty
) -> None:
    revocations, owner = planned_revocations(site.conninfo, CACHED)
    async with caching_service(site.values, tmp_path) as base_url:
        sent, accepted = await send_during_revocations(base_url, revocations, owner)
    what = f"{WHAT}, behind a cache of 10 s"
    figures.record(
        record_property,
        what,
        {"requests": sent, "revocations": CACHED},
        {"accepted": accepted},
    )
    assert accepted > 0


async def test_suspended_or_ended_tenant_is_rejected_immediately(
    site: Site, record_property: RecordProperty
) -> None:
    await check_tenants(site, OTHERS, record_property)


async def test_removed_member_is_rejected_immediately(
    site: Site, record_property: RecordProperty
) -> None:
    await check_members(site, OTHERS, record_property)


async def test_body_that_arrives_after_the_revocation_changes_nothing(
    site: Site, record_property: RecordProperty
) -> None:
    await check_slow_bodies(site, OTHERS, record_property)


@asynccontextmanager
async def caching_service(values: dict[str, str], folder: Path) -> AsyncIterator[str]:
    """The address of the service behind a cache."""
    port = str(free_port())
    own = {**values, "PORT": port}
    async with running(folder=folder, module="tests.support.caching_service", **own) as command:
        await command.until(READY, "out")
        yield f"http://127.0.0.1:{port}"

"""Keys of djangorestframework-api-key in four processes: accepted, and rejected once revoked."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import httpx2
import pytest

from tests.support import figures
from tests.support.deployment import Deployment, deployed
from tests.support.drf_keys import DrfKeys, drf_keys
from tests.support.figures import RecordProperty
from tests.support.hammer import Hammer, Revocation
from tests.support.issuer import running_issuer
from tests.support.postgres import PostgresServer
from tests.system.test_immediate_revocation import OPERATOR, PATH, add_tenants, unlimited

PROCESSES: Final = 4
KEYS: Final = 1000
REVOKED: Final = 75
"""Before their first use, and as many after it."""
PATTERN: Final = r"[A-Za-z0-9]{8}\.[A-Za-z0-9]{32}"
AT_ONCE: Final = 40


class Site(NamedTuple):
    """The service with the imported keys, and who may revoke them."""

    deployment: Deployment
    keys: DrfKeys
    ids: list[str]
    owner: str


@pytest.fixture(scope="module")
async def site(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    folder: Path = tmp_path_factory.mktemp("site")
    keys = drf_keys(folder, KEYS)
    with postgres.database() as conninfo:
        async with running_issuer() as issuer:
            values = unlimited(conninfo, issuer, folder, str(PROCESSES))
            values["IMPORTED_KEY_PATTERN"] = PATTERN
            [(tenant_id, owner)] = add_tenants(conninfo, 1)
            async with deployed(values["DATABASE_URL"], folder, **values) as deployment:
                members = keys.members(scopes=["projects:read"])
                ids = await imported(deployment, tenant_id, members)
                yield Site(deployment, keys, ids, owner)


async def imported(
    deployment: Deployment, tenant_id: str, members: list[dict[str, object]]
) -> list[str]:
    """Import keys; return their ids."""
    async with deployment.client(OPERATOR) as operator:
        answer = await operator.post(
            f"/api/v1/tenants/{tenant_id}/api-keys/import",
            json={"algorithm": "sha512", "keys": members},
        )
    assert answer.status_code == 200, answer.text
    results = answer.json()["data"]
    assert {result["status"] for result in results} == {"created"}
    return [result["id"] for result in results]


async def statuses(client: httpx2.AsyncClient, secrets: list[str]) -> Counter[int]:
    """The answers to requests with these credentials, several at once."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def ask(secret: str) -> int:
        async with gate:
            headers = {"Authorization": f"Bearer {secret}"}
            return (await client.get(PATH, headers=headers)).status_code

    return Counter(await asyncio.gather(*map(ask, secrets)))


async def test_revoked_key_is_never_accepted_before_or_after_its_first_use(
    site: Site, record_property: RecordProperty
) -> None:
    revoked = list(zip(site.keys.secrets, site.ids, strict=True))[: 2 * REVOKED]
    unused, used = revoked[:REVOKED], revoked[REVOKED:]
    async with site.deployment.client(site.owner) as owner:
        stale = Counter[int]()
        for secret, key_id in unused:
            assert (await owner.delete(f"/api/v1/api-keys/{key_id}")).status_code == 204
            stale += await statuses(owner, [secret] * PROCESSES)
    assert stale == {401: REVOKED * PROCESSES}

    host, port = site.deployment.base_url.removeprefix("http://").split(":")
    revocations = [
        Revocation(secret, "DELETE", f"/api/v1/api-keys/{key_id}") for secret, key_id in used
    ]
    tally = await Hammer(host, int(port), PATH).run(revocations, site.owner)
    sent = tally.sent_afterwards + stale.total()
    figures.record(
        record_property,
        "Requests with imported keys, sent after a revocation",
        {"requests": sent, "revocations": 2 * REVOKED},
        {"accepted": tally.accepted},
    )
    assert (tally.revoked, tally.accepted) == (REVOKED, 0)


async def test_all_other_keys_are_accepted_and_no_hash_is(site: Site) -> None:
    others = site.keys.secrets[2 * REVOKED :]
    async with site.deployment.client("none") as client:
        for _ in range(2):
            assert await statuses(client, others) == {200: KEYS - 2 * REVOKED}
        given = [member["digest"] for member in site.keys.members()[-20:]]
        stored = [f"sha512$${digest}" for digest in given]
        assert await statuses(client, list(chain(given, stored))) == {401: 40}

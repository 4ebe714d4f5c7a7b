"""Lookups of keys and users that wait for each other."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec
import pytest

from tenantry.accounts.memberships.own import MembershipService
from tenantry.accounts.owner_addresses import owner_address_writes
from tenantry.app import build_authentication, build_base
from tenantry.auth.authentication import Authenticator
from tenantry.common.clock import DEFAULT_TIMEOUTS, system_clock
from tenantry.db.batcher import BatchMetrics
from tenantry.domain.api_keys import DEFAULT_FORMAT, Pepper
from tenantry.domain.permissions import Mode
from tenantry.integrations.oidc.claims import Claims
from tests.support.app import PEPPER, make_settings
from tests.support.patience import patient_database
from tests.support.principals import NOW, ONLY_FREE
from tests.support.senders import bearer

Lookup = Callable[[Authenticator, int], Awaitable[object]]


def look_up_key(authenticator: Authenticator, number: int) -> Awaitable[object]:
    secret = DEFAULT_FORMAT.compose(Mode.LIVE, hashlib.sha256(b"%d" % number).digest())
    return authenticator.authenticate(bearer(secret))


def look_up_user(authenticator: Authenticator, number: int) -> Awaitable[object]:
    claims = Claims(
        "https://idp.example",
        f"user_{number}",
        org_id="acme",
        role=None,
        scopes=(),
        issued_at=NOW,
        expires_at=NOW + timedelta(hours=1),
        email=None,
    )
    return authenticator.as_user(claims, "acme")


@pytest.mark.parametrize("look_up", [look_up_key, look_up_user])
@pytest.mark.parametrize(("gather_seconds", "batches"), [(0.0, [10, 3, 5]), (60.0, [10, 8])])
async def test_lookups_wait_for_most_of_the_senders_before_them_where_they_gather(
    conninfo: str, look_up: Lookup, gather_seconds: float, batches: list[int]
) -> None:
    seen: list[int] = []
    metrics = BatchMetrics("", lambda items, _waited, _took: seen.append(items))
    async with patient_database(conninfo, pool_size=1, metrics_of=lambda _: metrics) as database:
        authenticator = Authenticator(
            keys=database.lane(),
            users=database.lane(),
            peppers=[Pepper(PEPPER.encode())],
            tokens=None,
            catalog=ONLY_FREE,
            clock=system_clock,
            gather_seconds=gather_seconds,
        )
        first, few, more = range(10), range(10, 13), range(13, 18)
        await asyncio.gather(
            *[look_up(authenticator, number) for number in first], return_exceptions=True
        )
        waiting = [asyncio.ensure_future(look_up(authenticator, number)) for number in few]
        for _ in range(5):
            await asyncio.sleep(0)
        waiting += [asyncio.ensure_future(look_up(authenticator, number)) for number in more]
        await asyncio.gather(*waiting, return_exceptions=True)
        await authenticator.close()
    assert seen == batches


@pytest.mark.parametrize(("workers", "gathers"), [("1", False), ("2", True)])
async def test_only_several_processes_gather_lookups(workers: str, *, gathers: bool) -> None:
    base = build_base(make_settings(), "", system_clock, DEFAULT_TIMEOUTS)
    base = msgspec.structs.replace(base, settings=make_settings(WORKERS=workers))
    parts = build_authentication(
        base,
        lambda: 0.0,
        owner_address_writes(base.database, base.outbox, base.settings.billing.catalog, base.clock),
        MembershipService(base.database, None, base.clock),
    )
    assert (parts.authenticator.gather_seconds > 0) is gathers
    await base.http_client.aclose()

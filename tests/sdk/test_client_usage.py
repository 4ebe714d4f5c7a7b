"""Usage through both clients."""

from datetime import timedelta

from tenantry.domain.usage import RequestOutcome
from tests.sdk.sdk_support import Flavour, Served
from tests.support.app import OPERATOR_TOKEN
from tests.support.issuer import NOW
from tests.support.usage import write_usage


async def test_counts_of_a_key_are_read(served: Served, flavour: Flavour) -> None:
    org = await served.service.organization()
    key = await served.service.key(org.owner, org.id, "projects:read")
    numbers = {(key.id, RequestOutcome.ACCEPTED): 2, (key.id, RequestOutcome.FORBIDDEN): 1}
    await write_usage(served.service.conninfo, NOW, org.id, numbers)
    since = NOW - timedelta(days=3)
    async with flavour.client_of(served, org) as owner:
        keys = await owner.usage.get(since=since, interval="day", group_by="key")
        outcomes = await owner.usage.get(key_id=key.id, group_by="outcome")
    assert [(count.key_id, count.count, count.outcome) for count in keys.data] == [
        (key.id, 3, None)
    ]
    assert {count.outcome: count.count for count in outcomes.data} == {
        "accepted": 2,
        "forbidden": 1,
    }
    assert outcomes.complete_until >= NOW


async def test_the_operator_reads_counts_of_a_tenant(served: Served, flavour: Flavour) -> None:
    org = await served.service.organization()
    await write_usage(served.service.conninfo, NOW, org.id, {("key", RequestOutcome.ACCEPTED): 2})
    async with flavour.client(OPERATOR_TOKEN, base_url=served.url) as operator:
        report = await operator.operator.usage.get(group_by="tenant", org_id=org.id)
    assert [(count.org_id, count.count) for count in report.data] == [(org.id, 2)]

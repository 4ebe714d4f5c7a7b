"""Cause every kind of event that the metrics count."""

from typing import Final

from tenantry.db.job_names import DELIVER_MAIL
from tenantry.jobs.tasks import counted
from tests.support import events
from tests.support.billing import Provider
from tests.support.patience import patient_database
from tests.support.service import PROJECTS, Service

PLANS: Final = """
[[features]]
id = "exports"
type = "metered"
[[plans]]
id = "free"
[plans.features]
exports = 1
[[plans]]
id = "closed"
stripe_price_id = "price_closed"
[plans.limits]
requests_per_minute = 0
[[webhooks]]
name = "app"
url = "https://app.example/hooks"
types = ["grant.set"]
secrets = ["whsec_dIczB9hsfDTAdsKYG3h4T72HD3SVHxu2"]
"""
"""The catalog of a service for `counted_everything`: one plan permits no requests."""


async def counted_everything(service: Service) -> list[str]:
    """Cause an event of each kind; return the names involved."""
    provider = Provider(service)
    subscriber = await provider.subscriber()
    assert subscriber.organization is not None
    owner = subscriber.organization.owner
    await provider.send(events.updated(**subscriber.names, price="price_unheard_of"))
    failed = events.failed(customer=subscriber.customer)
    await provider.send(failed)
    await provider.post(
        events.failed(customer=subscriber.customer), secret="whsec_of_somebody_else_0123456789"
    )
    key = await service.key(owner, subscriber.id, "projects:read")
    await owner.delete(key.path)
    assert (await key.caller.get(PROJECTS)).status_code == 401
    consumed = await owner.post("/api/v1/entitlements/exports/consume", {"amount": 2})
    assert consumed.status_code == 403
    # an event's change reaches the standby that checks may read before its answer
    change = events.updated(**subscriber.names, price="price_closed", created=events.NOW + 1)
    await provider.send(change)
    assert (await owner.get(PROJECTS)).status_code == 429
    database = patient_database(service.conninfo, pool_size=1)
    await database.open()
    async with counted(database, DELIVER_MAIL):
        pass
    await database.close()
    return [
        subscriber.id,
        subscriber.customer,
        failed["id"],
        key.id,
        str(key.record["start"]),
        "price_unheard_of",
    ]

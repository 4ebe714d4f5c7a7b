"""Makes each type of outbound event by the API, with the object as the API shows it afterwards."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from tenantry.domain.outbound_events import EventType
from tests.support import events
from tests.support.app import WEBHOOK_SECRET
from tests.support.imported_keys import OldKey, import_key, old_key
from tests.support.members import MEMBERS, add_member, join, own_path, path_of
from tests.support.reversals import disputed, paid_invoice, refunded
from tests.support.secrecy import Secrets
from tests.support.service import (
    KEYS,
    Caller,
    JsonObject,
    Key,
    Organization,
    Service,
)
from tests.support.signing import deliver

EVENTS: Final = "/api/v1/operator/events"
INVITATIONS: Final = "/api/v1/invitations"
CATALOG: Final = """
[[features]]
id = "exports"
type = "metered"
[[features]]
id = "calls"
type = "metered"
counts = "requests"
[[plans]]
id = "free"
[plans.features]
exports = 10
calls = true
[[plans]]
id = "pro"
stripe_price_id = "price_pro"
[plans.features]
exports = 100
calls = true
[[plans]]
id = "narrow"
[plans.limits]
members = 1
[plans.features]
calls = 10
"""
SETTINGS: Final = {
    "INVITATIONS": "true",
    "SMTP_URL": "smtp://127.0.0.1:9",
    "MAIL_FROM": "mail@acme.example",
    "BASE_URL": "https://app.example",
}
REASON: Final = "Contract 2027-014"


class Made(NamedTuple):
    """A tenant with a new event, and the event's object as the API shows it."""

    org: Organization
    shown: JsonObject


class RememberingService(Service):
    """A service that remembers the secrets of its callers."""

    def __init__(self, service: Service) -> None:
        self.secrets = Secrets()
        self.secrets.add("webhook secret", WEBHOOK_SECRET)
        super().__init__(service.client, service.clock, service.issuer, service.conninfo)

    def caller(self, credential: str | None, **headers: str) -> Caller:
        if credential is not None:
            self.remember("credential", credential)
        return super().caller(credential, **headers)

    def remember(self, what: str, secret: str) -> str:
        return self.secrets.add(f"{what} {len(self.secrets.known)}", secret)


async def page(service: Service, **parameters: Any) -> JsonObject:
    """A page of the feed."""
    response = await service.operator.get(EVENTS, **parameters)
    assert response.status_code == 200, response.text
    answer: JsonObject = response.json()
    return answer


async def events_of(service: Service, org: Organization, *types: str) -> list[JsonObject]:
    """The tenant's events of these types, or all but those of the audit trail."""
    found: list[JsonObject] = (await page(service, orgId=org.id, types=",".join(types), limit=100))[
        "data"
    ]
    return found


async def shown_tenant(service: Service, org: Organization) -> JsonObject:
    return await _get(service.operator, f"/api/v1/operator/tenants/{org.id}")


def verified_user(service: Service, name: str) -> Caller:
    """A user whose address the identity provider has verified."""
    return service.user(name, email=f"{name}@x.example", email_verified=True)


async def invite(org: Organization, name: str) -> JsonObject:
    """The user of an address invited by mail; returns the record."""
    body = {"email": f"{name}@x.example", "role": "member"}
    return _answered(await org.owner.post(INVITATIONS, body), 201)


async def token_of(service: RememberingService, org: Organization, invitation: JsonObject) -> str:
    """The token in the link of an invitation."""
    link = await _get(org.owner, f"{INVITATIONS}/{invitation['id']}/link")
    return service.remember("invitation", link["url"].partition("token=")[2])


def _answered(response: Any, status: int = 200) -> JsonObject:
    assert response.status_code == status, response.text
    return dict(response.json()) if response.content else {}


async def _get(caller: Caller, path: str) -> JsonObject:
    return _answered(await caller.get(path))


async def _tenant_created(service: RememberingService) -> Made:
    org = await service.organization()
    return Made(org, await shown_tenant(service, org))


async def _tenant_updated(service: RememberingService) -> Made:
    org = await service.organization()
    _answered(await org.owner.patch(org.path, {"name": "Another name"}))
    return Made(org, await shown_tenant(service, org))


async def _access_changed(service: RememberingService) -> Made:
    org = await service.organization()
    changed = events.updated(org=org.id, customer=f"cus_{org.id}", subscription_id=f"sub_{org.id}")
    assert (await deliver(service.client, changed)).status_code == 200
    shown = await shown_tenant(service, org)
    assert (shown["plan"], shown["access"]["state"]) == ("pro", "full")
    return Made(org, shown)


async def _tenant_suspended(service: RememberingService) -> Made:
    org = await service.organization()
    body = {"name": "Acme", "ownerEmail": "owner@x.example", "suspended": True}
    return Made(org, _answered(await service.operator.put(org.path, body)))


async def _tenant_ended(service: RememberingService) -> Made:
    org = await service.organization()
    _answered(await service.operator.delete(org.path), 204)
    export = await _get(service.operator, f"{org.path}/export")
    return Made(org, {**export["tenant"], "ownerEmail": export["ownerEmail"], "suspended": False})


async def _member(service: Service, org: Organization, member: JsonObject) -> Made:
    return Made(org, await _get(org.owner, path_of(member)))


async def _member_added(service: RememberingService) -> Made:
    org = await service.organization(ownerId="owner-by-operator")
    [member] = (await _get(org.owner, MEMBERS))["data"]
    return Made(org, member)


async def _member_invited(service: RememberingService) -> Made:
    org = await service.organization()
    return await _member(service, org, await add_member(org.owner, "invited"))


async def _member_accepted(service: RememberingService) -> Made:
    org = await service.organization()
    return await _member(service, org, await join(service, org, "accepting"))


async def _member_declined(service: RememberingService) -> Made:
    org = await service.organization()
    member = await add_member(org.owner, "declining")
    _answered(await service.user("declining").delete(own_path(member)), 204)
    return await _member(service, org, member)


async def _member_left(service: RememberingService) -> Made:
    org = await service.organization()
    member = await join(service, org, "leaving")
    _answered(await service.user("leaving").delete(own_path(member)), 204)
    return await _member(service, org, member)


async def _member_updated(service: RememberingService) -> Made:
    org = await service.organization()
    member = await join(service, org, "promoted")
    return Made(org, _answered(await org.owner.patch(path_of(member), {"role": "admin"})))


async def _member_removed(service: RememberingService) -> Made:
    org = await service.organization()
    member = await join(service, org, "removed")
    _answered(await org.owner.delete(path_of(member)), 204)
    return await _member(service, org, member)


async def _invitation(org: Organization, invitation: JsonObject) -> Made:
    return Made(org, await _get(org.owner, f"{INVITATIONS}/{invitation['id']}"))


async def _invitation_created(service: RememberingService) -> Made:
    org = await service.organization()
    invitation = await invite(org, f"new-{org.id}")
    await token_of(service, org, invitation)
    return await _invitation(org, invitation)


async def _invitation_resent(service: RememberingService) -> Made:
    org = await service.organization()
    invitation = await invite(org, f"again-{org.id}")
    service.clock.advance(seconds=1)
    _answered(await org.owner.post(f"{INVITATIONS}/{invitation['id']}/resend"))
    return await _invitation(org, invitation)


async def _invitation_withdrawn(service: RememberingService) -> Made:
    org = await service.organization()
    invitation = await invite(org, f"withdrawn-{org.id}")
    _answered(await org.owner.delete(f"{INVITATIONS}/{invitation['id']}"), 204)
    return await _invitation(org, invitation)


async def _invitation_accepted(service: RememberingService) -> Made:
    org = await service.organization()
    name = f"guest-{org.id}"
    invitation = await invite(org, name)
    user = verified_user(service, name)
    token = await token_of(service, org, invitation)
    _answered(await user.post(f"{INVITATIONS}/accept", {"token": token}))
    return await _invitation(org, invitation)


async def _key(service: RememberingService) -> tuple[Organization, Key]:
    org = await service.organization()
    fields = {"externalId": "cus_4711", "metadata": {"team": "growth"}}
    return org, await service.key(org.owner, org.id, "projects:read", **fields)


async def _shown_key(org: Organization, key_id: str) -> Made:
    return Made(org, await _get(org.owner, f"{KEYS}/{key_id}"))


async def _key_created(service: RememberingService) -> Made:
    org, key = await _key(service)
    return await _shown_key(org, key.id)


async def _key_imported(service: RememberingService) -> Made:
    org = await service.organization()
    key: OldKey = old_key()
    service.remember("old key", key.secret)
    service.remember("hash of an old key", key.hash.hex())
    return await _shown_key(org, await import_key(service, org.id, key, metadata={"a": "b"}))


async def _key_updated(service: RememberingService) -> Made:
    org, key = await _key(service)
    body = {"name": "Renamed", "scopes": ["tenants:read"], "expiresAt": "2099-01-01T00:00:00Z"}
    _answered(await org.owner.patch(key.path, body))
    return await _shown_key(org, key.id)


async def _key_rotated(service: RememberingService) -> Made:
    org, key = await _key(service)
    response = await org.owner.post(f"{key.path}/rotate", {"overlapSeconds": 60})
    service.remember("successor", _answered(response, 201)["secret"])
    return await _shown_key(org, key.id)


async def _key_revoked(service: RememberingService) -> Made:
    org, key = await _key(service)
    _answered(await org.owner.delete(key.path), 204)
    return await _shown_key(org, key.id)


async def _key_leaked(service: RememberingService) -> Made:
    org, key = await _key(service)
    _answered(
        await service.anonymous.post(f"{KEYS}/report-leak", {"secret": key.caller.credential})
    )
    return await _shown_key(org, key.id)


async def _grant_set(service: RememberingService) -> Made:
    org = await service.organization()
    body = {"plan": "pro", "reason": REASON, "until": "2099-01-01T00:00:00Z"}
    return Made(org, _answered(await service.operator.put(f"{org.path}/grants/contract", body)))


async def _grant_ended(service: RememberingService) -> Made:
    made = await _grant_set(service)
    service.clock.advance(seconds=1)
    return Made(
        made.org, _answered(await service.operator.delete(f"{made.org.path}/grants/contract"))
    )


async def _quota_reached(service: RememberingService) -> Made:
    org = await service.organization()
    path = "/api/v1/entitlements/exports"
    for amount in (9, 1):
        _answered(await org.owner.post(f"{path}/consume", {"amount": amount}))
    return Made(org, await _get(org.owner, path))


async def _reversed(service: RememberingService, event: JsonObject, org: Organization) -> Made:
    paid = paid_invoice(f"cus_{org.id}", charge=f"ch_{org.id}", intent=f"pi_{org.id}")
    linked = events.completed(org=org.id, customer=f"cus_{org.id}")
    for each in (linked, paid, event):
        assert (await deliver(service.client, each)).status_code == 200
    entry = await _get(org.owner, f"/api/v1/billing/events/{event['id']}")
    return Made(org, entry["reversal"])


async def _refunded(service: RememberingService) -> Made:
    org = await service.organization()
    event = refunded(refund_id=f"re_{org.id}", charge=f"ch_{org.id}", intent=None)
    return await _reversed(service, event, org)


async def _disputed(service: RememberingService) -> Made:
    org = await service.organization()
    event = disputed(dispute_id=f"dp_{org.id}", charge=f"ch_{org.id}", intent=None)
    return await _reversed(service, event, org)


MAKERS: Final[Mapping[EventType, Callable[[RememberingService], Awaitable[Made]]]] = {
    EventType.TENANT_CREATED: _tenant_created,
    EventType.TENANT_UPDATED: _tenant_updated,
    EventType.ACCESS_CHANGED: _access_changed,
    EventType.TENANT_SUSPENDED: _tenant_suspended,
    EventType.TENANT_ENDED: _tenant_ended,
    EventType.MEMBER_ADDED: _member_added,
    EventType.MEMBER_INVITED: _member_invited,
    EventType.MEMBER_ACCEPTED: _member_accepted,
    EventType.MEMBER_DECLINED: _member_declined,
    EventType.MEMBER_LEFT: _member_left,
    EventType.MEMBER_UPDATED: _member_updated,
    EventType.MEMBER_REMOVED: _member_removed,
    EventType.INVITATION_CREATED: _invitation_created,
    EventType.INVITATION_RESENT: _invitation_resent,
    EventType.INVITATION_WITHDRAWN: _invitation_withdrawn,
    EventType.INVITATION_ACCEPTED: _invitation_accepted,
    EventType.KEY_CREATED: _key_created,
    EventType.KEY_IMPORTED: _key_imported,
    EventType.KEY_UPDATED: _key_updated,
    EventType.KEY_ROTATED: _key_rotated,
    EventType.KEY_REVOKED: _key_revoked,
    EventType.KEY_LEAKED: _key_leaked,
    EventType.GRANT_SET: _grant_set,
    EventType.GRANT_ENDED: _grant_ended,
    EventType.QUOTA_REACHED: _quota_reached,
    EventType.REFUNDED: _refunded,
    EventType.DISPUTED: _disputed,
}
"""What makes an event of each type by the API."""

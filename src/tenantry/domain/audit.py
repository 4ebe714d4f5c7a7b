"""The audit trail: the author, target and content of every change."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain.errors import ValidationError
from tenantry.domain.operator_acts import OperatorPerson
from tenantry.domain.reasons import reason_faults


class ActorKind(StrEnum):
    """The kind of a change's author."""

    API_KEY = "api_key"
    USER = "user"
    OPERATOR = "operator"
    """A client with the operator token, or a command on the database."""
    SYSTEM = "system"
    ANYBODY = "anybody"
    """A client without a credential, such as one that reports a leaked key."""


class Action(StrEnum):
    """A change; the word before the dot is the kind of its target."""

    BILLING_CHECKOUT = "billing.checkout_started"
    BILLING_PORTAL = "billing.portal_opened"
    BILLING_SEATS = "billing.seats_changed"
    """The quantity at the provider followed the number of active members."""
    BILLING_REPAIRED = "billing.repaired"
    """The operator compared the billing state with the events, or with the provider."""
    KEY_CREATED = "api_key.created"
    KEY_IMPORTED = "api_key.imported"
    KEY_UPDATED = "api_key.updated"
    KEY_ROTATED = "api_key.rotated"
    KEY_REVOKED = "api_key.revoked"
    KEY_LEAKED = "api_key.leak_reported"
    PROJECT_CREATED = "project.created"
    PROJECT_UPDATED = "project.updated"
    PROJECT_DELETED = "project.deleted"
    GRANT_SET = "grant.set"
    GRANT_ENDED = "grant.ended"
    TENANT_CREATED = "tenant.created"
    TENANT_UPDATED = "tenant.updated"
    TENANT_TRANSFERRED = "tenant.transferred"
    TENANT_ENDED = "tenant.ended"
    TENANT_EXPORTED = "tenant.exported"
    """Nothing changed: the operator read all data of the tenant."""
    MEMBER_ADDED = "member.added"
    """Without an invitation: the membership is active at once."""
    MEMBER_INVITED = "member.invited"
    MEMBER_ACCEPTED = "member.accepted"
    MEMBER_DECLINED = "member.declined"
    MEMBER_LEFT = "member.left"
    INVITATION_CREATED = "invitation.created"
    INVITATION_RESENT = "invitation.resent"
    INVITATION_WITHDRAWN = "invitation.withdrawn"
    INVITATION_ACCEPTED = "invitation.accepted"
    PERSON_ERASED = "person.erased"
    """The operator erased a person; the entry has HMACs of theirs."""
    MEMBER_UPDATED = "member.updated"
    MEMBER_REMOVED = "member.removed"


class TenantUpdate(StrEnum):
    """What `Action.TENANT_UPDATED` did, where one word says it."""

    SUSPENDED = "tenant.suspended"
    RESUMED = "tenant.resumed"
    SUSPENSION_CHANGED = "tenant.suspension_changed"
    ADDRESS_VERIFIED = "tenant.address_verified"
    CUSTOMER_LINKED = "customer.linked"
    CUSTOMER_UNLINKED = "customer.unlinked"


class Author(msgspec.Struct, frozen=True):
    """The author of a change and its reason, with the client's address and the request's id."""

    kind: ActorKind
    id: str | None = None
    address: str | None = None
    request_id: str | None = None
    on_behalf_of: str | None = None
    """For whom the operator's backend acts, in its own words."""
    reason: str | None = None
    """Why the author makes the change, in the author's words."""
    person: OperatorPerson | None = None
    """The person behind the operator, in the operator's trail alone."""

    def because(self, reason: str | None) -> "Author":
        """Return the author with a reason; None for none. Raises `ValidationError`."""
        if faults := reason_faults(reason) if reason is not None else []:
            raise ValidationError(*faults)
        return msgspec.structs.replace(self, reason=reason)


BY_OPERATOR: Final = Author(ActorKind.OPERATOR)
"""The author of operator commands."""


class AuditEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of the trail.

    ``before`` and ``after`` hold the fields that differ, in the API's names; null for a new and a
    deleted object.
    """

    id: Annotated[str, doc("The entry's id.", "aud_01975c3a60d1b2c3d4e5f60718293a4b")]
    org_id: Annotated[str, doc("The tenant that it belongs to.", "acme")]
    at: Annotated[datetime, doc("When the change was made.", "2026-11-02T09:45:10Z")]
    action: Annotated[Action, doc("What was changed, and how.", "api_key.updated")]
    actor_kind: Annotated[
        ActorKind,
        doc(
            "Who made the change: an API key, a user, the operator, or a client that reported a leaked key.",
            "user",
        ),
    ]
    actor_id: Annotated[str | None, doc("The id of that key or user.", "user_ada")]
    on_behalf_of: Annotated[
        str | None, doc("For whom the operator acted: `X-On-Behalf-Of` of the request.", "agent_7")
    ]
    reason: Annotated[
        str | None, doc("Why, in the words of who made the change.", "Invoice 2026-114 is unpaid")
    ]
    address: Annotated[str | None, doc("The client's address.", "203.0.113.7")]
    request_id: Annotated[
        str | None,
        doc(
            "The request's id, as in `X-Request-Id` and in the log.",
            "5e0c4ad1c1f24b7f9a0b6f9f6d0c7a51",
        ),
    ]
    target_id: Annotated[
        str,
        doc(
            "The id of the key, member, invitation or tenant that was changed, or the name of the grant.",
            "key_01975c3a51c2a1b3c5d7e9f10213a5b7",
        ),
    ]
    before: Annotated[
        dict[str, Any] | None,
        doc("The changed fields before the change; null for a new object.", {"name": "CI"}),
    ]
    after: Annotated[
        dict[str, Any] | None,
        doc(
            "The changed fields after the change; null for a deleted object.",
            {"name": "CI deploys"},
        ),
    ]


def update_of(entry: AuditEvent) -> tuple[TenantUpdate, str] | None:
    """Return what an entry of a changed tenant did, and its target: the tenant, or the provider's
    customers; None if its fields say no more than that the tenant changed.
    """
    if entry.action is not Action.TENANT_UPDATED:
        return None
    before, after = entry.before or {}, entry.after or {}
    if "customers" in after:
        return _change_of_customers(before["customers"], after["customers"])
    if "suspended" in after:
        is_suspended = after["suspended"]
        update = TenantUpdate.SUSPENDED if is_suspended else TenantUpdate.RESUMED
    elif "suspensionReason" in after:
        update = TenantUpdate.SUSPENSION_CHANGED
    elif after.get("ownerEmailVerified") and len(after) == 1:
        update = TenantUpdate.ADDRESS_VERIFIED
    else:
        return None
    return update, entry.target_id


def _change_of_customers(before: list[str], after: list[str]) -> tuple[TenantUpdate, str]:
    if linked := [one for one in after if one not in before]:
        return TenantUpdate.CUSTOMER_LINKED, ", ".join(linked)
    return TenantUpdate.CUSTOMER_UNLINKED, ", ".join(one for one in before if one not in after)

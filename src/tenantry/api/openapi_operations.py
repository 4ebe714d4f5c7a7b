"""What the OpenAPI document says of each operation, beyond what its route shows."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tenantry.domain import errors
from tenantry.domain.errors import DomainError


class Group(NamedTuple):
    """A group of operations, which OpenAPI calls a tag, and the schemas of its objects."""

    name: str
    description: str
    objects: tuple[str, ...] = ()


class Note(NamedTuple):
    """The group, what the operation does, what its success means, and the refusals that are its own.

    ``located`` says that a success carries the object's address; ``others`` are further statuses whose answer has
    the same form as the success. ``text`` is the media type of an answer that is not JSON.
    """

    group: str
    description: str
    answer: str
    errors: tuple[type[DomainError], ...] = ()
    located: bool = False
    others: Mapping[int, str] = MappingProxyType({})
    text: str | None = None


_PROJECTS: Final = "Projects"
_API_KEYS: Final = "API keys"
_TENANTS: Final = "Tenants"
_MEMBERS: Final = "Members"
_MEMBERSHIPS: Final = "Memberships"
_OPERATOR: Final = "Operator"
_AUDIT: Final = "Audit trail"
_BILLING: Final = "Billing"
_IDENTITY: Final = "Identity"
_WEBHOOK: Final = "Webhook"
_HEALTH: Final = "Health"

GROUPS: Final = (
    Group(
        _PROJECTS,
        "Objects of a tenant, each in live or test mode. A caller meets those of its own tenant and mode only.",
        ("Project",),
    ),
    Group(
        _API_KEYS,
        "Long-lived credentials that belong to an organization, not to a user. Only a digest of the secret is kept. "
        "Nobody makes, changes or rotates a key into more scopes, level or mode than they hold themselves.",
        ("ApiKey",),
    ),
    Group(
        _TENANTS,
        "The organizations that use the API. Plan and subscription status follow the payment provider's events.",
        ("Tenant",),
    ),
    Group(
        _MEMBERS,
        "Users of the identity provider who belong to a tenant, with a role each. Somebody else's membership is an "
        "invitation until that user accepts it. The lower of that role and the one that a token claims counts; a "
        "removed user is refused whatever their tokens claim. A user whose token claims the role owner is lowered or "
        "refused only by what an OWNER or the operator wrote. Members have no test mode.",
        ("Member",),
    ),
    Group(
        _MEMBERSHIPS,
        "A user's own memberships and invitations, in all tenants. They take the user's token, whatever its scopes, "
        "and no organization. A request that names a tenant with `X-Organization-Id` accepts its invitation too.",
        ("Membership",),
    ),
    Group(
        _OPERATOR,
        "For a team's own backend, with the operator's token: `OPERATOR_TOKEN` of the settings as the bearer "
        "credential. Where it is not set, nobody gets in.",
        ("TenantExport",),
    ),
    Group(
        _AUDIT,
        "Every change to keys, members and the tenant: who made it, from where, and what was before and after. It is "
        "written in the transaction of the change, is never altered, and goes only with its tenant. Changes of billing "
        "state are in the ledger of billing events.",
        ("AuditEvent",),
    ),
    Group(
        _BILLING,
        "The plans on offer, the ledger of what the payment provider reported, and the ways to the provider's pages. "
        "Tenants and billing have no test mode: a test-mode key reads them, and changes nothing of them.",
        ("PlanView", "BillingEventView"),
    ),
    Group(
        _IDENTITY,
        "Who a credential stands for, for clients and for the gateways in front of other services.",
        ("Whoami",),
    ),
    Group(
        _WEBHOOK,
        "Where the payment provider reports what happened. It carries no API key or token: its authenticity rests on "
        "the signature alone, and every answer is plain text.",
    ),
    Group(_HEALTH, "For orchestrators and monitoring. Prometheus finds the metrics at `/metrics`."),
)

OPERATIONS: Final[dict[str, Note]] = {
    "listProjects": Note(
        _PROJECTS, "The projects of the caller's tenant in the caller's mode, newest first.", "A page of projects."
    ),
    "createProject": Note(
        _PROJECTS,
        "The project is made in the caller's mode. The plan may limit how many projects a tenant has in each mode.",
        "The new project; `Location` is its address.",
        (errors.PlanLimitReachedError,),
        located=True,
    ),
    "getProject": Note(_PROJECTS, "One project of the caller's tenant and mode.", "The project."),
    "updateProject": Note(
        _PROJECTS, "What is left out stays as it is; a null `description` clears it.", "The project as it is now."
    ),
    "deleteProject": Note(_PROJECTS, "The project is gone for good.", "The project is deleted."),
    "listApiKeys": Note(
        _API_KEYS,
        "The keys of the caller's organization, newest first, never with their secrets. A test-mode caller sees "
        "test-mode keys only.",
        "A page of keys.",
        (errors.OrgMismatchError,),
    ),
    "createApiKey": Note(
        _API_KEYS,
        "The secret is in this answer and never again: keep it at once. `accessLevel: OWNER`, or the one scope "
        "`OWNER`, makes a key that may do everything; only an OWNER makes one. A key cannot make one that outlives it.",
        "The new key with its `secret`, this once; `Location` is its address.",
        (
            errors.OrgMismatchError,
            errors.ScopeEscalationError,
            errors.ModeMismatchError,
            errors.KeyLimitReachedError,
            errors.IdempotencyReplayError,
        ),
        located=True,
    ),
    "getApiKey": Note(_API_KEYS, "One key of the caller's organization, without its secret.", "The key."),
    "updateApiKey": Note(
        _API_KEYS,
        "Only an active key changes; what is left out stays as it is. A null `expiresAt` means that it never ends.",
        "The key as it is now.",
        (errors.ScopeEscalationError, errors.KeyNotActiveError, errors.LastOwnerError),
    ),
    "deleteApiKey": Note(
        _API_KEYS,
        "Once this is answered, every request with the key is refused, on every process and replica. Revoking it "
        "again is fine. The record stays, with `status: revoked`. The last OWNER key of a tenant that has no owner "
        "among its members is revoked only with `force=true`.",
        "The revocation is committed.",
        (errors.ScopeEscalationError, errors.LastOwnerError),
    ),
    "rotateApiKey": Note(
        _API_KEYS,
        "Makes a key with the same name, scopes, level, mode and expiry. The old one ends after `overlapSeconds`, "
        "at once by default, and never later than its own expiry.",
        "The new key with its `secret`, this once; `rotatedFrom` names the old one.",
        (
            errors.ScopeEscalationError,
            errors.ModeMismatchError,
            errors.KeyNotActiveError,
            errors.KeyLimitReachedError,
            errors.IdempotencyReplayError,
        ),
        located=True,
    ),
    "reportLeakedKey": Note(
        _API_KEYS,
        "For whoever finds a key where it should not be: it takes no credential. The key is revoked at once, whatever "
        "it may do and however its tenant stands, and the owner gets one mail. Reporting it again is fine. Only this "
        "key ends: one that took its place by rotation goes on.",
        "The key lets nobody in any more; `revokedAt` says since when.",
        (errors.NotFoundError, errors.DatabaseUnavailableError),
    ),
    "listTenants": Note(
        _TENANTS,
        "The tenants that the caller belongs to, newest first: a key's one, a user's all.",
        "A page of tenants.",
    ),
    "createTenant": Note(
        _TENANTS,
        "The user becomes the owner. An organization claim of the token that names no tenant yet becomes the new "
        "tenant's id. Without `ownerEmail` the address is the token's verified one, or the identity provider's. "
        "`TENANTS_PER_USER` says how many one user may create.",
        "The new tenant; `Location` is its address.",
        (errors.TenantExistsError, errors.TenantLimitReachedError),
        located=True,
    ),
    "getTenant": Note(_TENANTS, "The caller's tenant; any other is not found.", "The tenant."),
    "updateTenant": Note(
        _TENANTS,
        "Changes the name and, where it is given, the address for billing mail. A test-mode key may not.",
        "The tenant as it is now.",
        (errors.ModeMismatchError,),
    ),
    "transferTenant": Note(
        _MEMBERS,
        "Makes an active member the tenant's owner: `ownerId`, the role owner, and the address for billing mail. The "
        "owner before becomes admin, if a member. Only an OWNER may do this.",
        "The tenant as it is now.",
        (errors.ScopeEscalationError, errors.ModeMismatchError, errors.IdentityProviderNotConfiguredError),
    ),
    "listMembers": Note(
        _MEMBERS,
        "The members of the caller's tenant and the users it invites, newest first. Users who come with an "
        "organization claim alone are in no list: only their tokens tell of them.",
        "A page of members.",
    ),
    "createMember": Note(
        _MEMBERS,
        "Invites a user of the identity provider: the membership is `invited`, and counts once the user has accepted. "
        "Whoever adds themselves is active at once. An ended membership is invited again, with the same id and this "
        "role. Invitations count against the plan's limit `members`. Giving a role needs holding all that it grants, "
        "and a credential that gives access for good: a token, or a key without an end.",
        "The new member; `Location` is its address.",
        (
            errors.ScopeEscalationError,
            errors.ModeMismatchError,
            errors.MemberExistsError,
            errors.PlanLimitReachedError,
            errors.LastOwnerError,
            errors.IdentityProviderNotConfiguredError,
        ),
        located=True,
    ),
    "getMember": Note(_MEMBERS, "One member of the caller's tenant, be it a removed one.", "The member."),
    "updateMember": Note(
        _MEMBERS,
        "Counts from the member's next request on. A higher role is like giving it; a lower one needs no more than the "
        "scope, except that only an OWNER changes an owner.",
        "The member as it is now.",
        (errors.ScopeEscalationError, errors.ModeMismatchError, errors.MemberNotActiveError, errors.LastOwnerError),
    ),
    "deleteMember": Note(
        _MEMBERS,
        "Withdraws an invitation too. Once this is answered, every request of the user is refused, on every process "
        "and replica, whatever the token claims. Only an OWNER's removal also counts for a user whose token claims the "
        "role owner. Removing it again is fine. The record stays, with `removedAt`. Only an OWNER removes an owner.",
        "The removal is committed.",
        (errors.ScopeEscalationError, errors.ModeMismatchError, errors.LastOwnerError),
    ),
    "listOwnMemberships": Note(
        _MEMBERSHIPS,
        "The user's memberships and invitations, newest first. Of a tenant that only invites the user, its id and its "
        "name are all that is shown.",
        "A page of memberships.",
    ),
    "acceptMembership": Note(
        _MEMBERSHIPS,
        "Accepting again is fine. Another user's membership is not found.",
        "The membership, which is active.",
        (errors.MemberNotActiveError,),
    ),
    "deleteOwnMembership": Note(
        _MEMBERSHIPS,
        "Declines an invitation, or leaves the tenant; again is fine. The tenant's owner, and its last one, transfer "
        "it first.",
        "The membership has ended.",
        (errors.LastOwnerError,),
    ),
    "putTenant": Note(
        _OPERATOR,
        "Makes the tenant, or sets what is given of an existing one. Its id is 1 to 64 of `A-Za-z0-9_-`. "
        "`stripeCustomerId` links the provider's customer; the first claim on a customer stands. `suspended` shuts the "
        "tenant's credentials out until it is false again. The user `ownerId` becomes a member with the role owner, "
        "unless they were removed.",
        "The tenant as it is now.",
        (errors.CustomerTakenError, errors.TenantDeletedError),
        located=True,
        others={201: "The tenant is new."},
    ),
    "deleteTenant": Note(
        _OPERATOR,
        "The tenant's keys die with this answer. Its data can be exported for 30 days, and then it is gone.",
        "The tenant has ended.",
    ),
    "exportTenant": Note(
        _OPERATOR,
        "Everything that is kept of a tenant, except key digests and raw event bodies; also of one that ended less "
        "than 30 days ago.",
        "The tenant's data.",
    ),
    "listAuditEvents": Note(
        _AUDIT,
        "The trail of the caller's tenant, newest first. It has no test mode.",
        "A page of the trail.",
        (errors.ModeMismatchError,),
    ),
    "exportAuditEvents": Note(
        _AUDIT,
        "The whole trail, or the part of it that is asked for, newest first: one JSON object a line.",
        "The entries.",
        (errors.ModeMismatchError,),
        text="application/x-ndjson",
    ),
    "listPlans": Note(_BILLING, "The plans of the catalog, all on one page.", "The plans."),
    "listBillingEvents": Note(
        _BILLING,
        "What the payment provider reported of the caller's tenant, newest first, and what became of each event.",
        "A page of the ledger.",
    ),
    "getBillingEvent": Note(_BILLING, "One event of the caller's tenant, by the provider's id.", "The event."),
    "createCheckoutSession": Note(
        _BILLING,
        "Makes a checkout at the payment provider, where the caller's tenant subscribes to a plan. Send the browser "
        "to `url`. The plan changes when the provider's event arrives, not before.",
        "The checkout's address.",
        (
            errors.ModeMismatchError,
            errors.ProviderNotConfiguredError,
            errors.ProviderRefusedError,
            errors.ProviderUnavailableError,
        ),
    ),
    "createPortalSession": Note(
        _BILLING,
        "Opens the payment provider's portal, where the caller's tenant changes its payment method, or cancels.",
        "The portal's address.",
        (
            errors.ModeMismatchError,
            errors.NoCustomerError,
            errors.ProviderNotConfiguredError,
            errors.ProviderRefusedError,
            errors.ProviderUnavailableError,
        ),
    ),
    "whoami": Note(_IDENTITY, "The caller, as the service sees it.", "The caller."),
    "verifyCredential": Note(
        _IDENTITY,
        "For reverse proxies (`auth_request`, `forward_auth`): answers any method, with the caller's identity in "
        "headers of visible ASCII. The scope stands in the path, which the gateway's own configuration writes; `-` "
        "asks for none. Anything may follow it, and the query is ignored. It accepts live mode alone: a test-mode key "
        "is refused. A refusal's problem document is in the header `X-Problem` too.",
        "The credential is good and covers the scope.",
        (errors.NotFoundError, errors.InsufficientScopeError, errors.ModeMismatchError),
    ),
    "verifyCredentialInMode": Note(
        _IDENTITY,
        "The same for a gateway that accepts test-mode keys: `test` accepts them alone, and `any` those of both modes. "
        "Users act in live mode. Nothing may follow these two. `live` is what holds without a mode.",
        "The credential is good, covers the scope, and acts in an accepted mode.",
        (errors.NotFoundError, errors.InsufficientScopeError, errors.ModeMismatchError),
    ),
    "receiveProviderEvent": Note(
        _WEBHOOK,
        "Delivery is at least once and in any order: a second delivery changes nothing, and a late event changes "
        "nothing that a newer one decided. A 200 means that the event is committed. `Stripe-Signature` is read where "
        "`Provider-Signature` is missing.",
        "`OK`: handled now, or before.",
    ),
    "healthz": Note(_HEALTH, "Whether the process is alive. It asks nothing else.", "It is."),
    "readyz": Note(
        _HEALTH,
        "Whether requests can be answered: the database is there with its schema up to date, and the identity "
        "provider's keys have been asked for.",
        "It is ready.",
        others={503: "It is not ready; `waitingFor` says for what."},
    ),
}

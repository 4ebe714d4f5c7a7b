"""The records of the API. Fields and values that a newer service adds are kept."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tenantry_sdk._response import Model
from tenantry_sdk._secret import Secret

if TYPE_CHECKING:
    from tenantry_sdk.types import (
        AccessLevel,
        AccessState,
        ActorKind,
        AuditAction,
        EntitlementSource,
        EventOutcome,
        FeatureType,
        HashAlgorithm,
        HealthStatus,
        ImportStatus,
        InvitationStatus,
        KeyStatus,
        MemberStatus,
        Mode,
        OwnMembershipStatus,
        PrincipalKind,
        RequestOutcome,
        Role,
        SubscriptionStatus,
    )
else:
    # msgspec would reject the values that a newer service adds.
    AccessLevel = AccessState = ActorKind = AuditAction = EntitlementSource = EventOutcome = (
        FeatureType
    ) = HealthStatus = InvitationStatus = KeyStatus = MemberStatus = str
    Mode = OwnMembershipStatus = PrincipalKind = Role = SubscriptionStatus = str
    HashAlgorithm = ImportStatus = RequestOutcome = str


class ApiKey(Model, frozen=True, kw_only=True):
    """An API key, without its secret."""

    id: str
    """The key's id, for changing, rotating and revoking it."""
    org_id: str
    """The tenant that it belongs to."""
    name: str
    """The display name."""
    scopes: list[str]
    """What the holder may do: ``<resource>:<action>``, where either part may be ``*``."""
    access_level: AccessLevel
    """``SCOPED``, or ``OWNER`` for a key with every permission."""
    mode: Mode
    """``live`` or ``test``. A key sees only objects of the same mode."""
    expires_at: datetime | None
    """When the key expires; None for never."""
    status: KeyStatus
    """``active``, ``revoked`` or ``expired``."""
    start: str
    """The prefix, the mode and the first 4 random characters, to tell keys apart."""
    last4: str
    """The last 4 characters of the secret."""
    created_at: datetime
    """When it was created."""
    created_by: str
    """The id of the user or key that created it."""
    last_used_at: datetime | None
    """When it was last used; up to a minute behind."""
    last_used_address: str | None = None
    """The IP address of the client that last used it."""
    external_id: str | None = None
    """The id that another system of yours gives it; several keys may have it."""
    metadata: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """What your systems store with it; empty if they store nothing."""
    allowed_addresses: list[str] = msgspec.field(default_factory=list[str])
    """The addresses and networks from which it may be used; empty for any."""
    enabled: bool = True
    """Whether requests with it are accepted while it is active; False if it is switched off."""
    requests_per_minute: int | None = None
    """At most so many requests in a minute; None for no limit of its own."""
    imported_as: HashAlgorithm | None = None
    """The algorithm of the hash by which it was imported, until its first use; None for all other
    keys.
    """
    revoked_at: datetime | None
    """When it was revoked; None if it was not."""
    rotated_from: str | None
    """The key that this one replaced."""
    superseded_by: str | None
    """The key that replaced this one."""
    rotated_from_last_used_at: datetime | None = None
    """When the replaced key was last used. Once all clients use the new key, it no longer
    changes.
    """
    leak_reported_at: datetime | None = None
    """When a leak report revoked the key."""


class NewApiKey(ApiKey, frozen=True, kw_only=True):
    """A new key with its secret, which only this response contains."""

    secret: Secret
    """The key itself. Only this answer contains it."""


class RevokedKey(Model, frozen=True, kw_only=True):
    """A key that a leak report revoked."""

    id: str
    """The key's id."""
    status: KeyStatus
    """Always ``revoked``."""
    revoked_at: datetime
    """When it was revoked."""


class ImportedKey(Model, frozen=True, kw_only=True):
    """The result for one key of an import."""

    external_id: str | None
    """The ``externalId`` that was sent."""
    id: str
    """The id of the new key, or of the key that was there before."""
    status: ImportStatus
    """``exists``: the tenant's key with this ``externalId`` was imported before, and is unchanged.
    ``digest_taken``: another key, of any tenant, was imported with this hash.
    """


class ImportResult(Model, frozen=True, kw_only=True):
    """The results of an import."""

    data: list[ImportedKey]
    """A result for each key, in the order of the call."""


class ImportPreview(Model, frozen=True, kw_only=True):
    """What an import would do."""

    data: list[ImportStatus]
    """What would become of each key, in the order of the call."""


class Project(Model, frozen=True, kw_only=True):
    """A project of the tenant."""

    id: str
    """The project's id."""
    org_id: str
    """The tenant that it belongs to."""
    name: str
    """The display name."""
    description: str | None
    """What it is for."""
    mode: Mode
    """Live or test. Objects of one mode are invisible to the other."""
    created_at: datetime
    """When it was created."""
    updated_at: datetime
    """When it was last changed."""


class BillingState(Model, frozen=True, kw_only=True):
    """The fields of a tenant that billing events set."""

    plan: str
    """The plan's id; ``free`` is the fallback and downgrade plan."""
    subscription_status: SubscriptionStatus
    """The provider's status, such as ``active``, ``past_due`` or ``canceled``; ``none`` without a
    subscription.
    """
    current_period_end: datetime | None
    """End of the current billing period; None when there is none."""
    cancel_at_period_end: bool
    """Whether the subscription ends with the period."""


class Access(Model, frozen=True, kw_only=True):
    """What a tenant's subscriptions give now, as every check says it."""

    state: AccessState
    """``full``, ``grace`` (a payment is due) or ``none``: the limits of ``free``, as without a
    subscription.
    """
    plan: str
    """The plan whose limits count; ``free`` without access."""


class TenantAccess(Access, frozen=True, kw_only=True):
    """What a tenant's subscriptions give now, until when and why."""

    until: datetime | None
    """The first moment when any of the access changes without another event: the plan or its grace
    period, add-ons, or what a grant gives; None if nothing does. The plan may stay: ask again then.
    """
    reason: str
    """Why, in one sentence."""


class Tenant(BillingState, frozen=True, kw_only=True):
    """A tenant: an organization with its plan and subscription."""

    id: str
    """The tenant's id, as in the subscription's ``metadata.orgId``."""
    name: str
    """The display name."""
    access: TenantAccess
    """What the subscriptions give now."""
    cancel_at: datetime | None
    """When the provider will cancel the subscription, if that is scheduled."""
    ends_at: datetime | None
    """When the subscription ended or will end; None if it renews."""
    seats: int | None
    """The quantity of the subscription's plan item."""
    stripe_customer_id: str | None
    """The payment provider's customer id; of several customers, the one linked last."""
    owner_id: str | None
    """The user who owns the tenant."""
    created_at: datetime
    """When it was created."""
    updated_at: datetime
    """When it was last changed."""
    time_zone: str | None = None
    """The IANA name of the zone in which its pages show times; None: that of each reader."""


class BillingAddress(Model, frozen=True, kw_only=True):
    """The address that receives a tenant's billing mail."""

    email: str
    """The owner's address."""
    verified: bool
    """Whether it is verified; only then does it receive security notices."""


class ManagedTenant(Tenant, frozen=True, kw_only=True):
    """A tenant as the operator sees it."""

    owner_email: str
    """The address that receives billing mail."""
    suspended: bool
    """Whether the tenant's credentials are refused."""
    suspension_reason: str | None = None
    """Why it is suspended; None without a reason."""


class Grant(Model, frozen=True, kw_only=True):
    """What the operator gives a tenant by contract."""

    name: str
    """Its name, which is unique in the tenant."""
    plan: str | None
    """The plan that it gives; None if none."""
    features: dict[str, bool | int]
    """The features that it gives: True, which has no limit, or a number."""
    limits: dict[str, int]
    """The limits that it raises to these, by their names in the API, such as ``apiKeys``."""
    until: datetime | None
    """When it ends; None if it does not."""
    reason: str
    """Why the tenant has it. The tenant sees it."""
    set_at: datetime
    """When it was last set."""
    ended_at: datetime | None
    """When the operator ended it; None if that has not happened."""


class Limits(Model, frozen=True, kw_only=True):
    """The limits of a plan; None means unlimited."""

    projects: int | None = None
    """Maximum projects in each mode."""
    api_keys: int | None = None
    """Maximum active API keys."""
    members: int | None = None
    """Maximum members and invitations."""
    requests_per_minute: int | None = None
    """Maximum requests of the tenant in any 60 seconds."""
    requests_per_minute_per_key: int | None = None
    """Maximum requests of each API key or user in any 60 seconds."""


class Plan(Model, frozen=True, kw_only=True):
    """A plan of the catalog."""

    id: str
    """The plan's id, as in a tenant's ``plan``."""
    name: str
    """The display name."""
    stripe_price_id: str | None
    """The first price of the payment provider that means this plan; None if there is none."""
    limits: Limits
    """What the plan allows."""
    prices: list[PlanPrice] | None = None
    """The prices at which the plan is sold; None where the service does not know them."""
    features: dict[str, bool | int] | None = None
    """What the plan gives of each feature: a number, or True, which has no limit; None where the
    catalog has no features.
    """


class CurrencyAmount(Model, frozen=True, kw_only=True):
    """What a price costs in a currency."""

    currency: str
    """The currency, as three lowercase letters (ISO 4217)."""
    amount: int | None
    """The amount in the currency's smallest unit; None where it depends on use."""


class PlanPrice(Model, frozen=True, kw_only=True):
    """What a plan costs each period, for each seat where the plan has seats."""

    id: str
    """The provider's price id."""
    interval: str
    """The unit of the period: ``day``, ``week``, ``month`` or ``year``."""
    interval_count: int
    """How many of these units a period has."""
    currency: str
    """The currency, as three lowercase letters (ISO 4217)."""
    amount: int | None
    """The amount in the currency's smallest unit; None where it depends on use."""
    currencies: tuple[CurrencyAmount, ...] = ()
    """What it costs in each currency in which it is sold, its own first."""


class Entitlement(Model, frozen=True, kw_only=True):
    """What the organization has of a feature now."""

    feature: str
    """The feature's id in the plan catalog."""
    type: FeatureType
    """``boolean``, ``limit`` (up to a number) or ``metered`` (so much in each period)."""
    granted: bool
    """Whether the organization has the feature."""
    limit: int | None
    """The most of it; None without a limit and for a boolean feature, 0 if it is not granted."""
    used: int | None
    """What a metered feature counts in this period; None for others."""
    remaining: int | None
    """The rest of a metered feature's limit, never below 0; None without one."""
    resets_at: datetime | None
    """When the next period of a metered feature begins."""
    source: EntitlementSource | None
    """``plan``, ``addon``, or ``grant`` where that gives more than both; None if it is not
    granted.
    """


class UsageCount(Model, frozen=True, kw_only=True):
    """The requests of one hour or day."""

    at: datetime
    """When the hour or the day begins, in UTC."""
    count: int
    """The number of requests."""
    org_id: str | None = None
    """The tenant; for the operator, grouped by tenant or key."""
    key_id: str | None = None
    """The API key, grouped by key; None there for the requests of all users together."""
    outcome: RequestOutcome | None = None
    """How the requests were decided, grouped by outcome."""


class UsageReport(Model, frozen=True, kw_only=True):
    """Counts of requests, oldest first. An hour or a day without requests has none."""

    data: list[UsageCount]
    """The counts."""
    complete_until: datetime
    """Every request that was answered before this moment is counted; later ones may be missing."""


class Rejection(Model, frozen=True, kw_only=True):
    """Refused requests of one key or user that are equal, of one minute."""

    at: datetime
    """When the last of them was refused."""
    mode: Mode
    """The mode of the credential."""
    status: int
    """The HTTP status of the answer."""
    code: str
    """The error code of the answer."""
    request_id: str
    """The id of the last request, as in ``X-Request-Id``."""
    address: str | None
    """The address of the last request's client, if known."""
    counted: int
    """The number of requests."""
    key_id: str | None = None
    """The API key; None for a user."""
    principal_id: str | None = None
    """The user, by the token's subject; None for a key."""
    needed: str | None = None
    """What was missing: a scope or feature, or the limit that was reached."""
    route: str | None = None
    """The template of the route; None in an application that authenticates in-process."""


class Consumption(Model, frozen=True, kw_only=True):
    """The use of a metered feature after `consume` or `give_back`."""

    used: int | None
    """What is used in this period; None if the service did not answer."""
    remaining: int | None
    """The remaining quota of this period; None for no limit, or if the service did not answer."""
    resets_at: datetime | None
    """When the next period begins; None if the service did not answer."""

    @property
    def counted(self) -> bool:
        """Whether the service counted the use. False only with ``on_unavailable="allow"``."""
        return self.used is not None


class RoleDefinition(Model, frozen=True, kw_only=True):
    """A role that members may have."""

    id: str
    """The role's id, as in a member's ``role``."""
    name: str
    """What people call it."""
    scopes: list[str]
    """What its users may do."""
    gives: list[str]
    """The roles that its users may give, change and remove, by id."""
    assignable: bool
    """Whether the caller may give it."""


class Member(Model, frozen=True, kw_only=True):
    """A user of the tenant, with a role."""

    id: str
    """The member's id, for changing the role and removing it."""
    org_id: str
    """The tenant that it belongs to."""
    user_id: str
    """The user's id at the identity provider: ``sub`` of their tokens."""
    role: Role
    """``owner``, ``admin``, ``member``, or a role of the service's own."""
    status: MemberStatus
    """``invited`` until the user accepts, then ``active``; finally ``removed``."""
    created_at: datetime
    """When the user was first added or invited."""
    updated_at: datetime
    """When it was last changed."""
    removed_at: datetime | None
    """When the user was removed; None for a current member. Requests of a removed user are
    rejected.
    """


class Membership(Model, frozen=True, kw_only=True):
    """A membership or an invitation of the caller."""

    id: str
    """The membership's id: the id of the member in the tenant."""
    org_id: str
    """The tenant that it belongs to."""
    org_name: str
    """The tenant's name, chosen by its members."""
    role: Role
    """``owner``, ``admin`` or ``member``."""
    status: OwnMembershipStatus
    """``invited`` or ``active``."""


class Invitation(Model, frozen=True, kw_only=True):
    """An invitation to become a member of the tenant, mailed to an address."""

    id: str
    """The invitation's id."""
    org_id: str
    """The tenant that it belongs to."""
    email: str
    """The invited address."""
    role: Role
    """What the user may do after accepting: ``owner``, ``admin`` or ``member``."""
    status: InvitationStatus
    """``open``, ``accepted``, ``withdrawn`` or ``expired``."""
    invited_by: str
    """The user or key that created it."""
    created_at: datetime
    """When it was created."""
    expires_at: datetime
    """Until when it can be accepted."""
    sent_at: datetime | None
    """When the mail server accepted its last mail; None before the first."""


class InvitationLink(Model, frozen=True, kw_only=True):
    """The link of an invitation."""

    url: str
    """The page on which the invited user accepts."""


class PaymentReversal(Model, frozen=True, kw_only=True):
    """A refund or dispute, as an event reports it."""

    id: str | None
    """The provider's id; None if ``charge.refunded`` names none."""
    status: str
    """The provider's status."""
    amount: int | None
    """In the smallest unit; None while parked."""
    currency: str | None
    """In lower case."""
    reason: str | None
    """The provider's reason."""
    failure_reason: str | None
    """Why a refund failed."""
    charge_id: str | None
    """The charge."""
    payment_intent_id: str | None
    """The payment intent."""
    event_id: str
    """The entry of the ledger."""


class BillingEvent(Model, frozen=True, kw_only=True):
    """An entry of the tenant's ledger: a provider event and its effect."""

    id: str
    """The provider's event id; tenantry's own for its own types."""
    type: str
    """The provider's event type, ``tenantry.subscription.snapshot`` for a snapshot of the
    provider's API, ``tenantry.access.ended`` for access that ended by time, or
    ``tenantry.grant.set`` and ``tenantry.grant.ended`` for the operator's grants.
    """
    created: datetime
    """When the provider created the event; events are ordered by it."""
    received_at: datetime
    """When tenantry received it."""
    livemode: bool | None
    """Whether the event is of the provider's live mode; None if the event does not say."""
    outcome: EventOutcome
    """The effect of the event on arrival."""
    reason: str
    """The reason for the outcome."""
    before: BillingState | None
    """The tenant's billing fields before the event; None if it is not part of the order."""
    after: BillingState | None
    """The tenant's billing fields after the event."""
    anomalies: list[str]
    """Unexpected facts about the event, such as ``unknown_price``; usually empty."""
    reversal: PaymentReversal | None
    """The refund or dispute of the event."""


class UnplacedEvent(Model, frozen=True, kw_only=True):
    """A provider event that belongs to no tenant."""

    id: str
    """The provider's event id."""
    type: str
    """The provider's event type."""
    created: datetime
    """When the provider created it."""
    received_at: datetime
    """When tenantry received it."""
    outcome: EventOutcome
    """``parked``: applied once its tenant is known. ``ignored``: it names no tenant. ``invalid``:
    see ``reason``.
    """
    reason: str
    """What it waits for."""
    org_id: str | None
    """The tenant that its metadata names."""
    customer_id: str | None
    """The provider's customer."""
    subscription_id: str | None
    """The subscription."""
    invoice_id: str | None
    """The invoice."""
    command: str | None
    """The command that places it, with words to replace in capitals; None where none can."""


class BillingStateDetails(BillingState, frozen=True, kw_only=True):
    """The whole billing state of a tenant."""

    provider_status: str | None
    """The status of the subscription at the provider."""
    subscription_id: str | None
    """The subscription."""
    subscription_created: datetime | None
    """When it was created."""


class SubscriptionState(Model, frozen=True, kw_only=True):
    """One subscription of a tenant."""

    id: str
    """The provider's id of it."""
    plan: str
    """The plan that it gives."""
    status: SubscriptionStatus
    """Its status."""
    seats: int | None
    """The quantity of the plan's item."""
    current_period_end: datetime | None
    """End of its current billing period."""
    cancel_at_period_end: bool
    """Whether it ends with the period."""
    cancel_at: datetime | None
    """When the provider will cancel it."""
    past_due_since: datetime | None
    """Since when it is past due."""
    ended_at: datetime | None
    """When it ended."""
    reason: str
    """Why it counts for the tenant, or does not."""


class AccessEnding(Model, frozen=True, kw_only=True):
    """What ends by time of a tenant's access."""

    at: datetime
    """When it ends."""
    ends: str
    """What ends, in words."""
    grants: list[str]
    """The names of the grants that end then."""
    plan: str
    """The plan whose limits count afterwards."""
    reason: str
    """Why that plan counts."""


class FieldComparison(Model, frozen=True, kw_only=True):
    """A field of a tenant's billing state that is not what the events give."""

    field: str
    """The field."""
    stored: Any
    """Its value in the database."""
    folded: Any
    """What the events give."""


class BillingExplanation(Model, frozen=True, kw_only=True):
    """A tenant's billing state, and the events that led to it."""

    tenant: Tenant
    """The tenant."""
    grants: list[Grant]
    """The grants that count now."""
    endings: list[AccessEnding]
    """What ends by time, in order."""
    customers: list[str]
    """The payment provider's customers of the tenant."""
    suspended: bool
    """Whether the tenant's credentials are refused."""
    ended: bool
    """Whether the tenant has ended."""
    earlier: int
    """The number of older events that are left out."""
    entries: list[BillingEvent]
    """The newest events, oldest first."""
    state: BillingStateDetails
    """The state now."""
    subscriptions: list[SubscriptionState]
    """The subscriptions, the one that counts first; empty unless ``SUBSCRIPTIONS=each``."""
    events: int
    """The number of events that decide the state."""
    differences: list[FieldComparison]
    """The stored fields that differ from what the events give; usually none."""
    parked: int
    """The number of parked events that can be applied."""


class TenantMatch(Model, frozen=True, kw_only=True):
    """A tenant, and what it was found by."""

    found_by: str
    """What the text is: ``id``, ``customer``, ``email`` or ``key``."""
    given: str
    """What matched: the id, the customer, the address, or the key's id."""
    tenant: ManagedTenant
    """The tenant."""
    key: ApiKey | None = None
    """The key that it was found by."""


class CustomerMove(Model, frozen=True, kw_only=True):
    """A change of the link of a payment provider's customer."""

    customer_id: str
    """The customer."""
    moved_from: str | None
    """The tenant before it; None without one."""
    moved_to: str | None
    """The tenant after it; None without one."""


class ImportedKeyCounts(Model, frozen=True, kw_only=True):
    """The numbers of a tenant's imported keys."""

    org_id: str
    """The tenant."""
    used: int
    """How many were used."""
    unused: int
    """How many are active, and were not used yet."""
    ended: int
    """How many ended without a use."""


class WebhookEndpointStatus(Model, frozen=True, kw_only=True):
    """An endpoint of the plan catalog that receives webhooks, and its state."""

    name: str
    """Its name in the plan catalog."""
    url: str
    """Its address, without its query."""
    types: list[str]
    """The types of events that it receives."""
    state: str
    """``active``, ``failing`` or ``disabled``."""
    waiting: int
    """The number of events that will be sent."""
    held: int
    """The number of events that wait for the operator: all attempts failed, or the endpoint is
    disabled.
    """
    last_success_at: datetime | None
    """When it last accepted an event."""
    failing_since: datetime | None
    """The first failed attempt since the last success; None without one."""
    paused_until: datetime | None
    """Until when it asked to be left alone; None if it did not."""
    disabled_at: datetime | None
    """When tenantry disabled it; None if it did not."""
    disabled_reason: str | None
    """Why it is disabled."""


class WebhookTest(Model, frozen=True, kw_only=True):
    """What the receiver of an endpoint did with a test message."""

    name: str
    """The endpoint's name in the plan catalog."""
    accepted: bool
    """Whether the receiver accepted the message."""
    status: int | None
    """The status of its answer; None without one."""
    error: str | None
    """Why there was no answer."""


class QueuedEvents(Model, frozen=True, kw_only=True):
    """How many events will be sent to an endpoint."""

    name: str
    """The endpoint's name in the plan catalog."""
    events: int
    """The number of events."""


class AuditEvent(Model, frozen=True, kw_only=True):
    """An entry of the audit trail: who changed what, and from where."""

    id: str
    """The entry's id."""
    org_id: str
    """The tenant that it belongs to."""
    at: datetime
    """When the change was made."""
    action: AuditAction
    """What was changed, and how."""
    actor_kind: ActorKind
    """Who made the change: an API key, a user, the operator, or a client that reported a leaked
    key.
    """
    actor_id: str | None
    """The id of that key or user."""
    on_behalf_of: str | None
    """For whom the operator acted, by its own word."""
    reason: str | None
    """Why, in the words of who made the change."""
    address: str | None
    """The client's address."""
    request_id: str | None
    """The request's id, as in ``X-Request-Id`` and in the log."""
    target_id: str
    """The id of the key, member or tenant that was changed."""
    before: dict[str, Any] | None
    """The changed fields before the change; None for a new object."""
    after: dict[str, Any] | None
    """The changed fields after the change; None for a deleted object."""


class HostedSession(Model, frozen=True, kw_only=True):
    """A page of the payment provider. Send the browser to ``url``; anyone with the URL acts for the
    tenant there.
    """

    url: str
    """The address to send the browser to. It expires, and anyone who has it acts for the tenant
    there.
    """


class Whoami(Model, frozen=True, kw_only=True):
    """The identity and the permissions of the credential."""

    kind: PrincipalKind
    """``api_key``, ``user`` or ``operator``."""
    id: str
    """The key's id, the user's at the identity provider, or ``operator``."""
    org_id: str
    """The tenant that the caller acts for."""
    mode: Mode
    """The caller's mode; a user's is always live."""
    scopes: list[str]
    """What the holder may do: ``<resource>:<action>``, where either part may be ``*``."""
    access_level: AccessLevel
    """``OWNER`` may do everything; ``SCOPED`` what its scopes say."""
    plan: str
    """The plan that the provider last said."""
    subscription_status: SubscriptionStatus
    """The status that the provider last said."""
    access: TenantAccess
    """What the tenant's subscriptions give now."""
    expires_at: datetime | None
    """When the credential expires; None for never."""
    external_id: str | None = None
    """The key's external id; None for a user."""
    metadata: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """The key's metadata; empty for a user."""


class CheckedCaller(Model, frozen=True, kw_only=True):
    """What a check says of a caller.

    Characters of ``id`` and of plans outside visible ASCII are ``?``.
    """

    kind: PrincipalKind
    """``api_key`` or ``user``."""
    id: str
    """The key's id, or the user's at the identity provider."""
    org_id: str
    """The tenant that the caller acts for."""
    mode: Mode
    """``live`` or ``test``; always ``live`` for a user."""
    plan: str
    """The plan that the provider last said."""
    subscription_status: SubscriptionStatus
    """The status that the provider last said."""
    access: Access
    """What the tenant's subscriptions give now. `whoami` says until when and why, too."""
    external_id: str | None = None
    """The key's external id; None without one, and for a user. `whoami` has the metadata too."""
    features: list[str] = msgspec.field(default_factory=list[str])
    """The features that the tenant has, in alphabetical order, as far as they fit into 256
    bytes.
    """
    features_cut: bool = False
    """Whether the tenant has more features than ``features`` names."""

    @property
    def effective_plan(self) -> str:
        """The plan whose limits count now; ``free`` without access."""
        return self.access.plan

    def has(self, feature: str) -> bool:
        """Whether the tenant has a feature.

        The check names the tenant's features, not those of the plan catalog: False may also mean
        that the catalog does not declare the feature. If ``features_cut``, it cannot know of a
        feature that is not named, and raises `LookupError`. `verify` with ``feature`` knows both.
        """
        if feature in self.features:
            return True
        if self.features_cut:
            raise LookupError(
                f"The service named only some of the features: call verify(..., feature={feature!r})."
            )
        return False


class TenantExport(Model, frozen=True, kw_only=True):
    """All data of a tenant, except key digests and raw event bodies."""

    tenant: Tenant
    """The tenant's record."""
    owner_email: str
    """The address that receives billing mail."""
    owner_email_verified: bool
    """Whether the owner's address is verified; only then does it receive security notices."""
    suspended: bool
    """Whether the tenant's credentials are refused."""
    customers: list[str]
    """The payment provider's customers that are linked to it."""
    members: list[dict[str, Any]]
    """Users and their roles, including removed ones."""
    api_keys: list[ApiKey]
    """All keys, without secrets."""
    audit_events: list[AuditEvent]
    """The whole audit trail."""
    projects: list[Project]
    """All projects of both modes."""
    billing_events: list[BillingEvent]
    """The whole ledger."""
    usage: list[dict[str, Any]] = msgspec.field(default_factory=list[dict[str, Any]])
    """What it used of metered features, for 400 days after each period; empty if it used none."""
    requests: list[UsageCount] = msgspec.field(default_factory=list[UsageCount])
    """How many requests each API key sent each day, for 400 days; empty without any."""
    invitations: list[Invitation] = msgspec.field(default_factory=list[Invitation])
    """Invitations by mail, until 30 days after their end; empty if there are none."""
    users: list[dict[str, Any]] = msgspec.field(default_factory=list[dict[str, Any]])
    """Name, verified address and last visit of its users, for a year; empty without any."""


class Health(Model, frozen=True, kw_only=True):
    """The state of the server process that answered."""

    status: HealthStatus
    """``ok``, ``not ready``, or ``draining`` during a shutdown."""
    waiting_for: list[str] = msgspec.field(default_factory=list[str])
    """What is not ready yet."""

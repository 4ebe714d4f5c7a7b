"""Decoding the provider's events and subscriptions: the fields that the fold needs, in both API shapes.

The shapes differ in where a subscription's ``current_period_end`` is (on the subscription; on its items since API
version 2025-03-31) and in whether related objects are ids or expanded. Unknown fields are ignored.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tenantry.common.clock import EPOCH_MAX
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent, Fact
from tenantry.domain.billing.snapshot import ProviderSubscription

_LARGEST: Final = 2**63 - 1
_SUBSCRIPTION_MODE: Final = "subscription"

Text = Annotated[str, Meta(max_length=255, pattern=r"^[^\x00]*\Z")]
Moment = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
Amount = Annotated[int, Meta(ge=-_LARGEST, le=_LARGEST)]
Count = Annotated[int, Meta(ge=0, le=_LARGEST)]
WebUrl = Annotated[str, Meta(max_length=2048, pattern=r"^https?://[!-~]*\Z")]
TenantId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,64}\Z")]
"""A tenant's id; empty where the metadata names none."""
Type = TypeVar("Type")
Data = TypeVar("Data")
Object = TypeVar("Object", bound=msgspec.Struct)


class NotAnEventError(ValueError):
    """The body is not a JSON event."""


class NotASubscriptionError(ValueError):
    """The object is not a valid subscription; the message says why, without its values."""


class _Data(msgspec.Struct):
    object: msgspec.Raw
    previous_attributes: msgspec.Raw = msgspec.Raw()


class _Envelope(msgspec.Struct, Generic[Type, Data]):
    type: Type
    data: Data
    id: Text | None = None
    created: Moment | None = None
    livemode: bool | None = None
    api_version: Text | None = None
    account: Text | None = None


class _ThinEvent(msgspec.Struct):
    """A thin event, which only refers to its object. ``context`` is the connected account, if any."""

    object: Literal["v2.core.event"]
    type: Text
    id: Text | None = None
    created: datetime | Moment | None = None
    livemode: bool | None = None
    context: Text | None = None


class _Ref(msgspec.Struct):
    id: Text


class _Price(msgspec.Struct):
    id: Text | None = None


class _Item(msgspec.Struct):
    price: _Price | Text | None = None
    current_period_end: Moment | None = None


class _Items(msgspec.Struct):
    data: list[_Item] = []


class _RawItems(msgspec.Struct):
    data: list[msgspec.Raw] = []


class _Metadata(msgspec.Struct):
    org_id: TenantId | None = msgspec.field(name="orgId", default=None)


class _Subscription(msgspec.Struct):
    status: Text
    id: Text | None = None
    created: Moment | None = None
    metadata: _Metadata | None = None
    items: _Items | None = None
    current_period_end: Moment | None = None
    cancel_at_period_end: bool | None = None
    customer: Text | _Ref | None = None


class _UpdateData(msgspec.Struct):
    """The data of the most frequent type, decoded in one pass: a second pass would double the cost."""

    object: _Subscription
    previous_attributes: msgspec.Raw = msgspec.Raw()


_Update = _Envelope[Literal["customer.subscription.updated"], _UpdateData]


class _DeletedSubscription(_Subscription):
    status: Text = "canceled"


class _PreviousItems(msgspec.Struct):
    data: Annotated[list[_Item], Meta(min_length=1)]


class _Previous(msgspec.Struct):
    """The tracked values among ``previous_attributes``; ``plan`` is an old name of the first item's price."""

    status: Text | UnsetType | None = UNSET
    current_period_end: Moment | UnsetType | None = UNSET
    cancel_at_period_end: bool | UnsetType | None = UNSET
    items: _PreviousItems | UnsetType = UNSET
    plan: _Price | UnsetType = UNSET


class _SubscriptionDetails(msgspec.Struct):
    subscription: Text | _Ref | None = None


class _Parent(msgspec.Struct):
    subscription_details: _SubscriptionDetails | None = None


class _Invoice(msgspec.Struct):
    id: Text | None = None
    customer: Text | _Ref | None = None
    hosted_invoice_url: WebUrl | None = None
    amount_due: Amount | None = None
    amount_remaining: Amount | None = None
    attempt_count: Count | None = None
    status: Text | None = None
    currency: Text | None = None
    subscription: Text | _Ref | None = None
    parent: _Parent | None = None


class _CheckoutSession(msgspec.Struct):
    mode: Text | None = None
    customer: Text | _Ref | None = None
    subscription: Text | _Ref | None = None
    metadata: _Metadata | None = None
    client_reference_id: TenantId | None = None


_previous_attributes: Final = msgspec.json.Decoder(_Previous)
_envelope: Final = msgspec.json.Decoder(_Envelope[Text, _Data])
_update: Final = msgspec.json.Decoder(_Update)
_subscription: Final = msgspec.json.Decoder(_Subscription)
_deleted: Final = msgspec.json.Decoder(_DeletedSubscription)
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_thin: Final = msgspec.json.Decoder(_ThinEvent)
_invoice: Final = msgspec.json.Decoder(_Invoice)
_checkout: Final = msgspec.json.Decoder(_CheckoutSession)


def decode_event(
    body: bytes, *, arrived: int, make_up_id: Callable[[], str], reference_links: bool = False
) -> BillingEvent:
    """Decode an event.

    Without ``id`` it gets the result of ``make_up_id``; without ``created`` it was created when it ``arrived`` (Unix
    seconds). With ``reference_links`` a checkout session's ``client_reference_id`` may name the tenant. If a required
    field is malformed or missing, the event has a ``problem``; a malformed optional field is None. Raises
    `NotAnEventError` unless ``body`` is a thin event or has a ``type`` and a ``data.object``.
    """
    envelope = _decode_update(body) or _decode_envelope(body)
    facts: dict[str, Any] = {"is_thin": True}
    if envelope.data is not None:
        try:
            facts = _facts(envelope, reference_links=reference_links)
        except NOT_JSON as error:
            facts = {"problem": f"The event's object cannot be used: {error}"}
    return BillingEvent(
        id=envelope.id or make_up_id(),
        type=envelope.type,
        created=arrived if envelope.created is None else envelope.created,
        livemode=envelope.livemode,
        api_version=envelope.api_version,
        account=envelope.account or None,
        **facts,
    )


def _decode_update(body: bytes) -> _Update | None:
    """Return the event if it is a well-formed update of a subscription."""
    if b"customer.subscription.updated" not in body:
        return None
    try:
        return _update.decode(body)
    except NOT_JSON:
        return None


def _decode_envelope(body: bytes) -> _Envelope[Text, _Data] | _Envelope[Text, None]:
    try:
        envelope = _envelope.decode(body)
    except NOT_JSON as error:
        if thin := _decode_thin(body):
            return thin
        raise NotAnEventError(str(error)) from error
    if not bytes(envelope.data.object).lstrip().startswith(b"{"):
        raise NotAnEventError("data.object is not an object")
    return envelope


def _decode_thin(body: bytes) -> _Envelope[Text, None] | None:
    try:
        event = _thin.decode(body)
        created = event.created
        if isinstance(created, datetime):
            seconds = (created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp()
            created = msgspec.convert(int(seconds), Moment)
    except NOT_JSON:
        return None
    return _Envelope(event.type, None, event.id, created, event.livemode, account=event.context)


def decode_subscription(raw: bytes) -> ProviderSubscription:
    """Decode a subscription. Raises `NotASubscriptionError`, also for a tenant id that cannot be one."""
    try:
        facts = _subscription_facts(_subscription.decode(raw), None)
    except NOT_JSON as error:
        raise NotASubscriptionError(str(error)) from error
    if not facts["subscription_id"] or facts["customer_id"] is None or facts["subscription_created"] is None:
        raise NotASubscriptionError("its id, customer or time of creation is missing")
    del facts["previous"]
    return ProviderSubscription(id=facts.pop("subscription_id"), created=facts.pop("subscription_created"), **facts)


def _facts(envelope: _Envelope[Text, _Data] | _Update, *, reference_links: bool) -> dict[str, Any]:
    raw, previous = envelope.data.object, envelope.data.previous_attributes
    if isinstance(raw, _Subscription):
        return _subscription_facts(raw, previous)
    if envelope.type == ev.SUBSCRIPTION_UPDATED:
        return _subscription_facts(_updated_subscription(raw), previous)
    if envelope.type == ev.SUBSCRIPTION_DELETED:
        return _subscription_facts(_tolerant(_deleted, _DeletedSubscription, raw, "metadata"), None)
    if envelope.type in ev.INVOICE_TYPES:
        return _invoice_facts(_tolerant(_invoice, _Invoice, raw, "customer"))
    if envelope.type == ev.CHECKOUT_COMPLETED:
        return _checkout_facts(_checkout_session(raw), reference_links=reference_links)
    return {}


def _tolerant(decoder: msgspec.json.Decoder[Object], kind: type[Object], raw: bytes, required: str) -> Object:
    """Decode an object, without those fields that are malformed, except the ``required`` one."""
    try:
        return decoder.decode(raw)
    except NOT_JSON:
        return _lenient(kind, raw, required)


def _lenient(kind: type[Object], raw: bytes, *required: str) -> Object:
    given, known = _fields.decode(raw), dict[str, Any]()
    for field in msgspec.structs.fields(kind):
        if field.encode_name in given:
            try:
                known[field.name] = msgspec.json.decode(given[field.encode_name], type=field.type)
            except NOT_JSON:
                if field.name in required:
                    raise
    return msgspec.convert(known, kind)


def _updated_subscription(raw: bytes) -> _Subscription:
    """Decode a subscription, without a malformed ``id``, ``created`` or ``customer``; of its items only the first."""
    subscription = _lenient(_Subscription, raw, "status", "metadata", "current_period_end", "cancel_at_period_end")
    items = msgspec.json.decode(_fields.decode(raw).get("items", b"null"), type=_RawItems | None)
    required = ("price",) if subscription.current_period_end is not None else ("price", "current_period_end")
    subscription.items = _Items([_lenient(_Item, item, *required) for item in (items.data[:1] if items else [])])
    return subscription


def _checkout_session(raw: bytes) -> _CheckoutSession:
    """Decode a checkout session; only one for a subscription needs more than its mode."""
    try:
        return _checkout.decode(raw)
    except NOT_JSON:
        session = _lenient(_CheckoutSession, raw, "mode")
    if session.mode != _SUBSCRIPTION_MODE:
        return session
    return _lenient(_CheckoutSession, raw, "mode", "customer", "metadata")


def _subscription_facts(subscription: _Subscription, previous: msgspec.Raw | None) -> dict[str, Any]:
    first = subscription.items.data[0] if subscription.items and subscription.items.data else _Item()
    period_end = subscription.current_period_end
    if period_end is None:
        period_end = first.current_period_end
    return {
        "org_id": (subscription.metadata and subscription.metadata.org_id) or None,
        "customer_id": _id(subscription.customer) or None,
        "subscription_id": subscription.id,
        "subscription_created": subscription.created,
        "status": subscription.status,
        "price_id": _id(first.price),
        "current_period_end": period_end,
        "cancel_at_period_end": bool(subscription.cancel_at_period_end),
        "previous": _previous(previous) if previous else None,
    }


def _previous(attributes: msgspec.Raw) -> dict[str, Fact] | None:
    """Return the tracked values among ``previous_attributes``.

    None if they are missing or malformed: that proves nothing. Empty if only others changed: that proves that the
    tracked ones were the same before.
    """
    if bytes(attributes).strip() == b"{}":
        return None
    try:
        before = _previous_attributes.decode(attributes)
    except NOT_JSON:
        return None
    first = before.items.data[0] if before.items else _Item(before.plan or None)
    former_end = before.current_period_end
    if former_end is UNSET and first.current_period_end is not None:
        former_end = first.current_period_end
    values = {
        "status": before.status,
        "current_period_end": former_end,
        "cancel_at_period_end": before.cancel_at_period_end,
        "price_id": UNSET if first.price is None else _id(first.price),
    }
    return {fact: value for fact, value in values.items() if not isinstance(value, UnsetType)}


def _invoice_facts(invoice: _Invoice) -> dict[str, Any]:
    details = invoice.parent.subscription_details if invoice.parent else None
    return {
        "customer_id": _id(invoice.customer) or None,
        "invoice_id": invoice.id,
        # the mail shows these, or they order events of one second
        "invoice_url": invoice.hosted_invoice_url,
        "amount_due": invoice.amount_due,
        "amount_remaining": invoice.amount_remaining,
        "attempt_count": invoice.attempt_count,
        "status": invoice.status,
        "currency": invoice.currency,
        "subscription_id": _id(invoice.subscription or (details.subscription if details else None)) or None,
    }


def _checkout_facts(session: _CheckoutSession, *, reference_links: bool) -> dict[str, Any]:
    facts = {"checkout_mode": session.mode, "customer_id": _id(session.customer) or None}
    if session.mode != _SUBSCRIPTION_MODE:
        return facts
    org_id = (session.metadata and session.metadata.org_id) or None
    if org_id is None and reference_links and session.client_reference_id:
        org_id = session.client_reference_id
    return {**facts, "org_id": org_id, "subscription_id": _id(session.subscription) or None}


def _id(reference: _Ref | _Price | str | None) -> str | None:
    return reference if reference is None or isinstance(reference, str) else reference.id

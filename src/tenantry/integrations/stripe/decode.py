"""Decoding the provider's events and subscriptions: the fields that the fold needs, in both API
shapes.

The shapes differ in where a subscription's ``current_period_end`` is (on the subscription; on its
items since API version 2025-03-31) and in whether related objects are ids or expanded. Unknown
fields are ignored.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from tenantry.common.clock import EPOCH_MAX
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import (
    BillingEvent,
    PreviousFact,
    Reversal,
    SubscriptionDetails,
    SubscriptionItem,
)
from tenantry.domain.billing.snapshot import ProviderSubscription
from tenantry.domain.billing_months import unclipped
from tenantry.domain.tenants import is_tenant_id

_LARGEST_AMOUNT: Final = 2**63 - 1
_UPDATED: Final = ev.SUBSCRIPTION_UPDATED.encode()
_CANCELED: Final = "canceled"
_SUBSCRIPTION_MODE: Final = "subscription"
_SUCCEEDED: Final = "succeeded"
# an even number of backslashes before it are texts themselves
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_REQUIRED: Final = ("subscription_id", "customer_id", "subscription_created")

_PLAIN_ID: Final = re.compile("[!-~]+")
_LONGEST_TEXT: Final = 255
_MOST_ITEMS: Final = 100
"""More than the provider allows in a subscription."""
_Text = Annotated[str, Meta(max_length=_LONGEST_TEXT)]
_Moment = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
_Amount = Annotated[int, Meta(ge=-_LARGEST_AMOUNT, le=_LARGEST_AMOUNT)]
_Count = Annotated[int, Meta(ge=0, le=_LARGEST_AMOUNT)]
_WebAddress = Annotated[str, Meta(max_length=2048, pattern=r"^https?://[!-~]*\Z")]
_Fact = _Text | _Moment | bool | None

Data = TypeVar("Data")
Object = TypeVar("Object", bound=Struct)


class NotAnEventError(ValueError):
    """The body is not a JSON event."""


class MalformedObjectError(ValueError):
    """A required value of an object is missing or malformed; the message says which, without its
    values.
    """


_MALFORMED: Final = (*NOT_JSON, MalformedObjectError)


class _Data(Struct):
    object: msgspec.Raw
    previous_attributes: msgspec.Raw = msgspec.Raw(b"null")


class _Envelope(Struct, Generic[Data]):
    type: _Text
    data: Data
    id: _Text | None = None
    created: int | None = None
    livemode: bool | None = None
    api_version: str | None = None
    account: _Text | None = None


class _ThinEvent(Struct):
    """A thin event, which only refers to its object. ``context`` is the connected account, if
    any.
    """

    object: Literal["v2.core.event"]
    type: _Text
    id: _Text | None = None
    created: datetime | int | None = None
    livemode: bool | None = None
    context: _Text | None = None


class _UpdateData(Struct):
    """The data of the most frequent type, decoded in one pass: a second pass would double the
    cost.
    """

    object: "_SubscriptionObject"
    previous_attributes: msgspec.Raw = msgspec.Raw(b"null")


class _Ref(Struct):
    id: _Text


class _Price(Struct):
    id: _Text | None = None


class _Item(Struct):
    price: _Price | _Text | None = None
    current_period_end: _Moment | None = None
    current_period_start: _Moment | None = None
    quantity: _Count | None = None
    id: _Text | None = None


_NO_ITEM: Final = _Item()


class _Items(Struct):
    data: list[_Item] = []
    has_more: Any = False


class _AnyItems(Struct):
    data: list[msgspec.Raw] = []
    has_more: Any = False


class _ItemsAlone(Struct):
    items: _AnyItems | None = None


class _PauseCollection(Struct):
    behavior: _Text | None = None


class _AnchorConfig(Struct):
    day_of_month: Annotated[int, Meta(ge=1, le=31)] | None = None


class _SubscriptionObject(Struct):
    status: _Text
    id: _Text | None = None
    created: _Moment | None = None
    metadata: dict[str, Any] | None = None
    items: _Items | None = None
    current_period_end: _Moment | None = None
    cancel_at_period_end: bool | None = None
    customer: _Text | _Ref | None = None
    current_period_start: _Moment | None = None
    cancel_at: _Moment | None = None
    trial_end: _Moment | None = None
    ended_at: _Moment | None = None
    pause_collection: _PauseCollection | None = None
    billing_cycle_anchor: _Moment | None = None
    billing_cycle_anchor_config: _AnchorConfig | None = None

    @property
    def listed_items(self) -> list[_Item]:
        return self.items.data if self.items else []


class _FormerPause(Struct):
    behavior: _Text | UnsetType | None = UNSET


class _Previous(Struct):
    """Former values: whole lists, and of other objects only what changed (API version
    2015-01-26).
    """

    status: _Fact | UnsetType = UNSET
    current_period_end: _Fact | UnsetType = UNSET
    cancel_at_period_end: _Fact | UnsetType = UNSET
    cancel_at: _Moment | UnsetType | None = UNSET
    trial_end: _Moment | UnsetType | None = UNSET
    current_period_start: _Moment | UnsetType | None = UNSET
    billing_cycle_anchor: _Moment | UnsetType | None = UNSET
    pause_collection: _FormerPause | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType | None = UNSET
    items: _Items | UnsetType = UNSET
    quantity: Any = UNSET
    plan: Any = UNSET
    """Old names of the only item's quantity and price, which count without ``items``: null where
    there are several.
    """


class _DeletedSubscription(_SubscriptionObject):
    status: _Text = _CANCELED


class _SubscriptionDetails(Struct):
    subscription: _Text | _Ref | None = None


class _Parent(Struct):
    subscription_details: _SubscriptionDetails | None = None


class _Invoice(Struct):
    id: _Text | None = None
    customer: _Text | _Ref | None = None
    hosted_invoice_url: _WebAddress | None = None
    amount_due: _Amount | None = None
    amount_remaining: _Amount | None = None
    attempt_count: _Count | None = None
    next_payment_attempt: _Moment | None = None
    status: _Text | None = None
    currency: _Text | None = None
    subscription: _Text | _Ref | None = None
    parent: _Parent | None = None
    charge: _Text | _Ref | None = None
    payment_intent: _Text | _Ref | None = None

    @property
    def any_subscription(self) -> str | _Ref | None:
        """The subscription, in either API shape."""
        details = self.parent.subscription_details if self.parent else None
        return self.subscription or (details.subscription if details else None)


class _ReversalObject(Struct):
    """A refund or a dispute (https://docs.stripe.com/api/refunds/object,
    https://docs.stripe.com/api/disputes/object).
    """

    id: _Text | None = None
    amount: _Count | None = None
    charge: _Text | _Ref | None = None
    payment_intent: _Text | _Ref | None = None
    currency: _Text | None = None
    status: _Text | None = None
    reason: _Text | None = None
    failure_reason: _Text | None = None
    created: _Moment = 0


class _Refunds(Struct):
    data: list[_ReversalObject] = []


class _Charge(Struct):
    """A charge with refunds, which it lists before API version 2022-11-15."""

    id: _Text | None = None
    amount_refunded: _Count | None = None
    payment_intent: _Text | _Ref | None = None
    customer: _Text | _Ref | None = None
    invoice: _Text | _Ref | None = None
    currency: _Text | None = None
    refunds: _Refunds | None = None


class _FormerCharge(Struct):
    amount_refunded: _Count | None = None


class _CheckoutSession(Struct):
    mode: _Text | None = None
    customer: _Text | _Ref | None = None
    subscription: _Text | _Ref | None = None
    metadata: dict[str, Any] | None = None
    client_reference_id: str | None = None
    created: _Moment | None = None


_OTHER_SUBSCRIPTIONS: Final[Mapping[str, type[_SubscriptionObject]]] = {
    ev.SUBSCRIPTION_DELETED: _DeletedSubscription,
    ev.TRIAL_WILL_END: _SubscriptionObject,
}
"""The objects of events of a subscription that are no updates."""
_envelope: Final = msgspec.json.Decoder(_Envelope[_Data])
_update: Final = msgspec.json.Decoder(_Envelope[_UpdateData])
_previous_attributes: Final = msgspec.json.Decoder(_Previous)
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_event(
    body: bytes,
    *,
    arrived: int,
    make_up_id: Callable[[], str],
    reference_links: bool = False,
) -> BillingEvent:
    """Decode an event.

    Without ``id`` it gets the result of ``make_up_id``; without ``created`` it was created when it
    ``arrived`` (Unix seconds). With ``reference_links`` a checkout session's
    ``client_reference_id`` may name the tenant. If a required field is malformed or missing, the
    event has a ``problem``; a malformed optional field is None. Raises `NotAnEventError` unless
    ``body`` is a thin event or has a ``type`` and a ``data.object``.
    """
    envelope = _decode_update(body) or _decode_envelope(body)
    created = arrived if envelope.created is None else envelope.created
    if not 0 <= created <= EPOCH_MAX:
        raise NotAnEventError("created is out of bounds")
    if "\x00" in f"{envelope.id}{envelope.type}{envelope.account}":
        raise NotAnEventError("id, type or account contains NUL")
    return BillingEvent(
        id=envelope.id or make_up_id(),
        type=envelope.type,
        created=created,
        livemode=envelope.livemode,
        api_version=_storable_version(envelope.api_version),
        account=envelope.account or None,
        **_facts_or_problem(envelope, reference_links=reference_links),
    )


def _storable_version(version: str | None) -> str | None:
    if version is None or len(version) > _LONGEST_TEXT or "\x00" in version:
        return None
    return version


def _facts_or_problem(
    envelope: _Envelope[_UpdateData] | _Envelope[_Data] | _Envelope[None], *, reference_links: bool
) -> dict[str, Any]:
    if envelope.data is None:
        return {"is_thin": True}
    try:
        return _facts(envelope, reference_links=reference_links)
    except _MALFORMED as error:
        return {"problem": f"The event's object cannot be used: {error}"}


def _decode_update(body: bytes) -> _Envelope[_UpdateData] | None:
    """Return the event if it is a well-formed update of a subscription."""
    if body.rfind(_UPDATED) == -1 or _has_nul(body):  # from the end, where the type usually is
        return None
    try:
        event = _update.decode(body)
    except NOT_JSON:
        return None
    return event if event.type == ev.SUBSCRIPTION_UPDATED else None


def _decode_envelope(body: bytes) -> _Envelope[_Data] | _Envelope[None]:
    try:
        envelope = _envelope.decode(body)
    except NOT_JSON as error:
        if thin := _decode_thin(body):
            return thin
        raise NotAnEventError(str(error)) from error
    if not bytes(envelope.data.object).lstrip().startswith(b"{"):
        raise NotAnEventError("data.object is not an object")
    return envelope


def _decode_thin(body: bytes) -> _Envelope[None] | None:
    try:
        event = msgspec.json.decode(body, type=_ThinEvent)
    except NOT_JSON:
        return None
    created = event.created
    if isinstance(created, datetime):
        created = int((created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp())
    return _Envelope(
        event.type,
        None,
        event.id,
        created,
        event.livemode,
        account=event.context,
    )


def decode_subscription(raw: bytes) -> ProviderSubscription:
    """Decode a subscription. Raises `MalformedObjectError`, also for a tenant id that cannot be
    one.
    """
    try:
        facts = _subscription_facts(
            _decode(_SubscriptionObject, raw, *_SubscriptionObject.__struct_fields__)
        )
    except _MALFORMED as error:
        raise MalformedObjectError(str(error)) from error
    if any(facts[name] in (None, "") for name in _REQUIRED):
        raise MalformedObjectError("its id, customer or time of creation is missing")
    return ProviderSubscription(
        id=facts.pop("subscription_id"),
        created=facts.pop("subscription_created"),
        **facts,
    )


def decode_checkout(
    raw: bytes,
    event_id: str,
    *,
    reference_links: bool,
) -> BillingEvent:
    """Decode a checkout session as the event of its completion, as `decode_event` does.

    Raises `MalformedObjectError`.
    """
    try:
        session = _decode_checkout(raw)
        facts = _checkout_facts(session, reference_links=reference_links)
    except _MALFORMED as error:
        raise MalformedObjectError(str(error)) from error
    if session.created is None:
        raise MalformedObjectError("its time of creation is missing")
    return BillingEvent(id=event_id, type=ev.CHECKOUT_COMPLETED, created=session.created, **facts)


def _facts(
    envelope: _Envelope[_Data] | _Envelope[_UpdateData], *, reference_links: bool
) -> dict[str, Any]:
    data, name = envelope.data, envelope.type
    if isinstance(data.object, _SubscriptionObject):
        return _update_facts(data.object, data.previous_attributes)
    raw = bytes(data.object)
    if name in ev.WHOLE_SUBSCRIPTION_TYPES:
        return _update_facts(_updated_subscription(raw), data.previous_attributes)
    if name in _OTHER_SUBSCRIPTIONS:
        return _subscription_facts(_decode(_OTHER_SUBSCRIPTIONS[name], raw, "metadata"))
    if name in ev.CHECKOUT_TYPES:
        return _checkout_facts(_decode_checkout(raw), reference_links=reference_links)
    if name in ev.REVERSAL_TYPES:
        return _reversal_facts(raw, name, bytes(data.previous_attributes))
    return _facts_without_tenant(raw, name)


def _facts_without_tenant(raw: bytes, name: str) -> dict[str, Any]:
    if name in ev.INVOICE_TYPES:
        return _invoice_facts(_decode(_Invoice, raw, "customer"), name)
    return _customer_facts(raw) if name == ev.CUSTOMER_DELETED else {}


def _customer_facts(raw: bytes) -> dict[str, Any]:
    return {"customer_id": _decode(_Ref, raw, "id").id or None}


def _update_facts(subscription: _SubscriptionObject, previous: msgspec.Raw) -> dict[str, Any]:
    return _subscription_facts(subscription) | {"previous": _previous(previous, subscription)}


def _decode(kind: type[Object], raw: bytes, *required: str) -> Object:
    """Decode an object, without those of its fields that are malformed, unless they are
    ``required``.
    """
    if not _has_nul(raw):
        try:
            return msgspec.json.decode(raw, type=kind)
        except NOT_JSON:
            pass
    return _decode_valid_fields(kind, raw, required)


def _decode_valid_fields(kind: type[Object], raw: bytes, required: Collection[str]) -> Object:
    given, known = _fields.decode(raw), dict[str, Any]()
    for field in msgspec.structs.fields(kind):
        if field.name in given:
            try:
                known[field.name] = _decode_field(given[field.name], field.type)
            except _MALFORMED as error:
                if field.name in required:
                    raise MalformedObjectError(f"{field.name}: {error}") from error
    return msgspec.convert(known, kind)


def _decode_field(raw: bytes, kind: object) -> object:
    value = msgspec.json.decode(raw, type=kind)
    if not isinstance(value, dict) and _has_nul(msgspec.json.encode(value)):
        raise MalformedObjectError("a text contains NUL")
    return value


def _updated_subscription(raw: bytes) -> _SubscriptionObject:
    """Decode a subscription, without malformed optional fields; of the items only the first is
    required.
    """
    required = ("status", "metadata", "current_period_end", "cancel_at_period_end")
    subscription = _decode(_SubscriptionObject, raw, *required)
    items = msgspec.json.decode(raw, type=_ItemsAlone).items
    needed = ["price"]
    if subscription.current_period_end is None:
        needed.append("current_period_end")
    raws = items.data if items else []
    decoded = [_decode(_Item, bytes(item), *needed) for item in raws[:1]]
    for item in raws[1:]:
        with suppress(*_MALFORMED):
            decoded.append(_decode(_Item, bytes(item)))
    subscription.items = _Items(decoded, items.has_more if items else False)
    return subscription


def _subscription_facts(subscription: _SubscriptionObject) -> dict[str, Any]:
    items = subscription.listed_items
    first = items[0] if items else _NO_ITEM
    period_end = subscription.current_period_end
    if period_end is None:
        period_end = first.current_period_end
    return {
        "org_id": _org_id(subscription.metadata),
        "customer_id": _reference(subscription.customer),
        "subscription_id": subscription.id,
        "subscription_created": subscription.created,
        "status": subscription.status,
        "price_id": _id_of(first.price),
        "current_period_end": period_end,
        "cancel_at_period_end": bool(subscription.cancel_at_period_end),
        "details": _details(subscription, items, first),
    }


def _details(
    subscription: _SubscriptionObject, items: Sequence[_Item], first: _Item
) -> SubscriptionDetails:
    period_start, pause = subscription.current_period_start, subscription.pause_collection
    has_more = subscription.items is not None and subscription.items.has_more is True
    is_truncated = has_more or len(items) > _MOST_ITEMS
    return SubscriptionDetails(
        _all_items(items) if is_truncated else _several_items(items),
        first.current_period_start if period_start is None else period_start,
        subscription.cancel_at,
        subscription.trial_end,
        pause.behavior if pause else None,
        subscription.ended_at,
        is_truncated=is_truncated,
        anchor=_anchor(subscription),
    )


def _anchor(subscription: _SubscriptionObject) -> int | None:
    anchor, config = subscription.billing_cycle_anchor, subscription.billing_cycle_anchor_config
    if anchor is None or config is None or config.day_of_month is None:
        return anchor
    return unclipped(anchor, config.day_of_month)


def _several_items(items: Sequence[_Item]) -> tuple[SubscriptionItem, ...]:
    """Return the items unless they are one of quantity 1, of which the price says everything."""
    if not items or (len(items) == 1 and items[0].quantity in (None, 1)):
        return ()
    return _all_items(items)


def _all_items(items: Sequence[_Item]) -> tuple[SubscriptionItem, ...]:
    return tuple(
        SubscriptionItem(
            _id_of(item.price),
            1 if item.quantity is None else item.quantity,
            item.current_period_end,
            item.current_period_start,
            item.id,
        )
        for item in items[:_MOST_ITEMS]
    )


def _previous(
    attributes: msgspec.Raw, subscription: _SubscriptionObject
) -> dict[str, PreviousFact] | None:
    """Return the facts of an updated ``subscription`` that are among ``previous_attributes``, as
    they were before.

    None if they are missing or malformed: that proves nothing. Empty if only others changed: that
    proves that these facts were the same before.
    """
    raw = bytes(attributes)
    if raw.strip() == b"{}" or _has_nul(raw):
        return None
    try:
        before = _previous_attributes.decode(raw)
        items = _former_items(before, subscription.listed_items)
    except (*NOT_JSON, ValueError):
        return None
    listed = {
        "status": before.status,
        "current_period_end": before.current_period_end,
        "cancel_at_period_end": before.cancel_at_period_end,
        "period_start": before.current_period_start,
        "cancel_at": before.cancel_at,
        "trial_end": before.trial_end,
        "anchor": before.billing_cycle_anchor,
        "pause": _former_pause(before.pause_collection),
        "org_id": _former_org_id(before.metadata),
    }
    previous = _facts_of_items(items)
    previous |= {fact: value for fact, value in listed.items() if value is not UNSET}
    return previous


def _former_items(before: _Previous, now: Sequence[_Item]) -> Sequence[_Item]:
    """Return the items before a change; none if they were the same. Raises `ValueError` if they are
    not known.
    """
    if before.items is not UNSET:
        return _completed(before.items.data, now)
    if before.plan is UNSET and before.quantity is UNSET:
        return []
    present = now[0] if len(now) == 1 else _NO_ITEM
    former = _Item(present.price, quantity=present.quantity)
    if before.plan is not UNSET:
        former.price = msgspec.convert(before.plan, _Price)
    if before.quantity is not UNSET:
        former.quantity = msgspec.convert(before.quantity, _Count)
    return [former]


def _completed(items: Sequence[_Item], now: Sequence[_Item]) -> Sequence[_Item]:
    """Take what abbreviated items leave out from the present ones in their places. Lists are whole
    since API version 2017-05-25, so an item without ``id`` is abbreviated.
    """
    if not items:
        raise ValueError("a subscription had no items")
    for item, present in zip(items, now, strict=False):
        if item.price is None:
            item.price = present.price
        if item.id is None and item.quantity is None:
            item.quantity = present.quantity
    return items


def _facts_of_items(items: Sequence[_Item]) -> dict[str, PreviousFact]:
    if not items:
        return {}
    first = items[0]
    periods = {
        "current_period_end": first.current_period_end,
        "period_start": first.current_period_start,
    }
    return {
        "price_id": _id_of(first.price),
        "items": _several_items(items),
        **{fact: second for fact, second in periods.items() if second is not None},
    }


def _former_pause(pause: _FormerPause | UnsetType | None) -> str | UnsetType | None:
    return pause.behavior if isinstance(pause, _FormerPause) else pause


def _former_org_id(metadata: dict[str, Any] | UnsetType | None) -> str | UnsetType | None:
    if not metadata or "orgId" not in metadata:
        return UNSET
    return _tenant_id(metadata["orgId"])


def _invoice_facts(invoice: _Invoice, event_type: str) -> dict[str, Any]:
    is_failure = event_type == ev.PAYMENT_FAILED
    return {
        "customer_id": _reference(invoice.customer),
        "invoice_id": invoice.id,
        # optional: the mail shows these, or they order events of one second
        "invoice_url": invoice.hosted_invoice_url,
        "amount_due": invoice.amount_due,
        "amount_remaining": invoice.amount_remaining,
        "attempt_count": invoice.attempt_count,
        "status": invoice.status,
        "currency": invoice.currency,
        "subscription_id": _reference(invoice.any_subscription),
        "details": SubscriptionDetails(
            next_attempt=invoice.next_payment_attempt if is_failure else None
        ),
        "payments": _payments(invoice.charge, invoice.payment_intent),
    }


def _payments(*references: str | _Ref | None) -> tuple[str, ...]:
    """Return the ids of a charge and a payment intent, without those that no provider makes."""
    return tuple(each for each in map(_reference, references) if each and _PLAIN_ID.fullmatch(each))


def _reversal_facts(raw: bytes, event_type: str, previous: bytes) -> dict[str, Any]:
    if event_type == ev.CHARGE_REFUNDED:
        return _charge_facts(raw, previous)
    found = _decode(_ReversalObject, raw, "id", "amount", "charge", "payment_intent")
    status = found.status or _default_status(event_type)
    if not found.id or found.amount is None or status is None:
        raise MalformedObjectError("its id, amount or status is missing")
    return _facts_of_reversal(found, status, found.amount)


def _facts_of_reversal(found: _ReversalObject, status: str, amount: int | None) -> dict[str, Any]:
    charge_id, payment_intent_id = _reference(found.charge), _reference(found.payment_intent)
    reversal = Reversal(
        found.id,
        status,
        amount,
        charge_id,
        payment_intent_id,
        found.reason,
        found.failure_reason,
    )
    payments = _payments(charge_id, payment_intent_id)
    return {"payments": payments, "reversal": reversal, "currency": found.currency}


def _default_status(event_type: str) -> str | None:
    """Return the status of a refund that has none, as of some payment methods."""
    if event_type in ev.DISPUTE_TYPES:
        return None
    return "failed" if event_type == ev.REFUND_FAILED else _SUCCEEDED


def _charge_facts(raw: bytes, previous: bytes) -> dict[str, Any]:
    """Return the facts of the newest refund of a charge, as far as the charge says them."""
    charge = _decode(_Charge, raw, "id", "customer", "payment_intent", "amount_refunded")
    if not charge.id or charge.amount_refunded is None:
        raise MalformedObjectError("its id or amount_refunded is missing")
    refund = _newest_refund(charge)
    if refund.amount is None and (former := _former_total(previous)) is not None:
        refund.amount = max(0, charge.amount_refunded - former)
    facts = _facts_of_reversal(refund, refund.status or _SUCCEEDED, refund.amount)
    if refund.amount is None:
        facts["reversal"] = replace(facts["reversal"], total=charge.amount_refunded)
    customer_id, invoice_id = _reference(charge.customer), _reference(charge.invoice)
    return facts | {"customer_id": customer_id, "invoice_id": invoice_id}


def _newest_refund(charge: _Charge) -> _ReversalObject:
    """Return the newest refund that a charge lists; one without id and amount if it lists none."""
    listed = charge.refunds.data if charge.refunds else []
    usable = [each for each in listed if each.id and each.amount is not None]
    newest = max(usable, key=lambda each: each.created, default=_ReversalObject())
    newest.charge, newest.payment_intent = charge.id, charge.payment_intent
    newest.currency = charge.currency
    return newest


def _former_total(previous: bytes) -> int | None:
    """Return what was refunded of a charge before; None if the event does not say."""
    try:
        return msgspec.json.decode(previous, type=_FormerCharge).amount_refunded
    except NOT_JSON:
        return None


def _checkout_facts(session: _CheckoutSession, *, reference_links: bool) -> dict[str, Any]:
    """Return the facts of a session; only one for a subscription has more than two."""
    facts = {"checkout_mode": session.mode, "customer_id": _reference(session.customer)}
    if session.mode != _SUBSCRIPTION_MODE:
        return facts
    org_id = _org_id(session.metadata)
    reference = _tenant_id(session.client_reference_id)
    by_reference = org_id is None and reference_links and reference is not None
    return facts | {
        "org_id": reference if by_reference else org_id,
        "details": SubscriptionDetails(by_reference=by_reference),
        "subscription_id": _reference(session.subscription),
    }


def _decode_checkout(raw: bytes) -> _CheckoutSession:
    """Decode a checkout session; only one for a subscription needs more than its mode."""
    try:
        return _decode(_CheckoutSession, raw, "mode", "customer", "metadata")
    except MalformedObjectError:
        session = _decode(_CheckoutSession, raw, "mode")
        if session.mode == _SUBSCRIPTION_MODE:
            raise
        return session


def _org_id(metadata: dict[str, Any] | None) -> str | None:
    given = (metadata or {}).get("orgId")
    org_id = _tenant_id(given)
    if org_id is None and given not in (None, ""):
        raise MalformedObjectError("metadata.orgId is not a tenant id")
    return org_id


def _tenant_id(value: object) -> str | None:
    return value if isinstance(value, str) and is_tenant_id(value) else None


def _reference(reference: str | _Ref | None) -> str | None:
    """Return the id of a customer or subscription; None for an empty one too."""
    return _id_of(reference) or None


def _id_of(reference: str | _Ref | _Price | None) -> str | None:
    """Return the id of an object, which the provider may write in place of the object."""
    return reference.id if isinstance(reference, _Ref | _Price) else reference


def _has_nul(body: bytes) -> bool:
    """Whether a text in this JSON has the character NUL, which PostgreSQL cannot store."""
    # most have no escape at all, and one byte is found fast
    return b"\\" in body and rb"\u0000" in body and _NUL.search(body) is not None

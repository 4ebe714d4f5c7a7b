"""Decoding the provider's events and subscriptions: the fields that the fold needs, in both API shapes.

The shapes differ in where a subscription's ``current_period_end`` is (on the subscription; on its items since API
version 2025-03-31) and in whether related objects are ids or expanded. Unknown fields are ignored.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Generic, Literal, TypeGuard, TypeVar

import msgspec
from msgspec import UNSET

from tenantry.common.clock import EPOCH_MAX
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent, Fact
from tenantry.domain.billing.snapshot import ProviderSubscription
from tenantry.domain.tenants import is_tenant_id

_LONGEST_TEXT: Final = 255
_LONGEST_URL: Final = 2048
_LARGEST_AMOUNT: Final = 2**63 - 1
_UPDATED: Final = ev.SUBSCRIPTION_UPDATED.encode()
_CANCELED: Final = "canceled"
_SUBSCRIPTION_MODE: Final = "subscription"
_PLAIN: Final = ("status", "current_period_end", "cancel_at_period_end")


Data = TypeVar("Data")
Object = TypeVar("Object", bound=msgspec.Struct)


class NotAnEventError(ValueError):
    """The body is not a JSON event."""


class NotASubscriptionError(ValueError):
    """The object is not a valid subscription; the message says why, without its values."""


class _Data(msgspec.Struct):
    object: msgspec.Raw
    previous_attributes: msgspec.Raw = msgspec.Raw(b"null")


class _Envelope(msgspec.Struct, Generic[Data]):
    type: str
    data: Data
    id: str | None = None
    created: int | None = None
    livemode: bool | None = None
    api_version: str | None = None
    account: str | None = None


class _ThinEvent(msgspec.Struct):
    """A thin event, which only refers to its object. ``context`` is the connected account, if any."""

    object: Literal["v2.core.event"]
    type: str
    id: str | None = None
    created: datetime | int | None = None
    livemode: bool | None = None
    context: str | None = None


class _UpdateData(msgspec.Struct):
    """The data of the most frequent type, decoded in one pass: a second pass would double the cost."""

    object: "_SubscriptionObject"
    previous_attributes: msgspec.Raw = msgspec.Raw(b"null")


class _Ref(msgspec.Struct):
    id: str


class _Price(msgspec.Struct):
    id: str | None = None


class _Item(msgspec.Struct):
    price: _Price | str | None = None
    current_period_end: int | None = None


class _Items(msgspec.Struct):
    data: list[_Item] = []


class _AnyItems(msgspec.Struct):
    data: list[msgspec.Raw] = []


class _SubscriptionObject(msgspec.Struct):
    status: str
    id: str | None = None
    created: int | None = None
    metadata: dict[str, Any] | None = None
    items: _Items | None = None
    current_period_end: int | None = None
    cancel_at_period_end: bool | None = None
    customer: str | _Ref | None = None


class _Previous(msgspec.Struct):
    status: Any = UNSET
    current_period_end: Any = UNSET
    cancel_at_period_end: Any = UNSET
    items: Any = UNSET
    plan: Any = UNSET


class _DeletedSubscription(_SubscriptionObject):
    status: str = _CANCELED


class _EndedSubscription(msgspec.Struct):
    metadata: dict[str, Any] | None = None
    id: str | None = None
    created: int | None = None
    customer: str | _Ref | None = None


class _SubscriptionDetails(msgspec.Struct):
    subscription: str | _Ref | None = None


class _Parent(msgspec.Struct):
    subscription_details: _SubscriptionDetails | None = None


class _Invoice(msgspec.Struct):
    id: str | None = None
    customer: str | _Ref | None = None
    hosted_invoice_url: Any = None
    amount_due: Any = None
    amount_remaining: Any = None
    attempt_count: Any = None
    status: Any = None
    currency: Any = None
    subscription: str | _Ref | None = None
    parent: _Parent | None = None


class _CheckoutSession(msgspec.Struct):
    mode: str | None = None
    customer: str | _Ref | None = None
    subscription: str | _Ref | None = None
    metadata: dict[str, Any] | None = None
    client_reference_id: str | None = None


_previous_attributes: Final = msgspec.json.Decoder(_Previous)
_envelope: Final = msgspec.json.Decoder(_Envelope[_Data])
_update: Final = msgspec.json.Decoder(_Envelope[_UpdateData])
_subscription: Final = msgspec.json.Decoder(_SubscriptionObject)
_deleted: Final = msgspec.json.Decoder(_DeletedSubscription)
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any_items: Final = msgspec.json.Decoder(_AnyItems | None)
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
    created = arrived if envelope.created is None else envelope.created
    event_id = envelope.id or make_up_id()
    if not 0 <= created <= EPOCH_MAX or not (
        _is_text(event_id) and _is_text(envelope.type) and _is_text(envelope.account)
    ):
        raise NotAnEventError("id, type, account or created is out of bounds")
    facts: dict[str, Any] = {"is_thin": True}
    if envelope.data is not None:
        try:
            facts = _facts(envelope, reference_links=reference_links)
        except (*NOT_JSON, _MalformedError) as error:
            facts = {"problem": f"The event's object cannot be used: {error}"}
    return BillingEvent(
        id=event_id,
        type=envelope.type,
        created=created,
        livemode=envelope.livemode,
        api_version=_text_if_any(envelope.api_version),
        account=envelope.account or None,
        **facts,
    )


def _decode_update(body: bytes) -> _Envelope[_UpdateData] | None:
    """Return the event if it is a well-formed update of a subscription."""
    if _UPDATED not in body:
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
        event = _thin.decode(body)
    except NOT_JSON:
        return None
    created = event.created
    if isinstance(created, datetime):
        created = int((created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp())
    return _Envelope(event.type, None, event.id, created, event.livemode, account=event.context)


def decode_subscription(raw: bytes) -> ProviderSubscription:
    """Decode a subscription. Raises `NotASubscriptionError`, also for a tenant id that cannot be one."""
    try:
        subscription = _subscription.decode(raw)
        facts = _subscription_facts(subscription, None)
    except (*NOT_JSON, _MalformedError) as error:
        raise NotASubscriptionError(str(error)) from error
    if not facts["subscription_id"] or facts["customer_id"] is None or facts["subscription_created"] is None:
        raise NotASubscriptionError("its id, customer or time of creation is missing")
    del facts["previous"]
    return ProviderSubscription(id=facts.pop("subscription_id"), created=facts.pop("subscription_created"), **facts)


class _MalformedError(ValueError):
    """A value of the object is out of bounds."""


def _facts(envelope: _Envelope[_Data] | _Envelope[_UpdateData], *, reference_links: bool) -> dict[str, Any]:
    raw = envelope.data.object
    if isinstance(raw, _SubscriptionObject):
        return _subscription_facts(raw, envelope.data.previous_attributes)
    if envelope.type == ev.SUBSCRIPTION_UPDATED:
        return _subscription_facts(_updated_subscription(raw), envelope.data.previous_attributes)
    if envelope.type == ev.SUBSCRIPTION_DELETED:
        return _deletion_facts(raw)
    if envelope.type in ev.INVOICE_TYPES:
        return _invoice_facts(_tolerant(_invoice, _Invoice, raw, "id", "subscription", "parent"))
    if envelope.type == ev.CHECKOUT_COMPLETED:
        return _checkout_facts(_checkout_session(raw), reference_links=reference_links)
    return {}


def _deletion_facts(raw: bytes) -> dict[str, Any]:
    try:
        return _subscription_facts(_deleted.decode(raw), None)
    except (*NOT_JSON, _MalformedError):
        return {**_identity(_lenient(_EndedSubscription, raw, "id", "created", "customer")), "status": _CANCELED}


def _tolerant(decoder: msgspec.json.Decoder[Object], kind: type[Object], raw: bytes, *optional: str) -> Object:
    """Decode an object, without those of its ``optional`` fields that are malformed."""
    try:
        return decoder.decode(raw)
    except NOT_JSON:
        return _lenient(kind, raw, *optional)


def _lenient(kind: type[Object], raw: bytes, *optional: str) -> Object:
    given, known = _fields.decode(raw), dict[str, Any]()
    for field in msgspec.structs.fields(kind):
        if field.name in given:
            try:
                known[field.name] = msgspec.json.decode(given[field.name], type=field.type)
            except NOT_JSON:
                if field.name not in optional:
                    raise
    return msgspec.convert(known, kind)


def _updated_subscription(raw: bytes) -> _SubscriptionObject:
    """Decode a subscription, without malformed optional fields; of the items only the first is required."""
    try:
        return _subscription.decode(raw)
    except NOT_JSON:
        subscription = _lenient(_SubscriptionObject, raw, "id", "created", "customer", "items")
    if "items" in (given := _fields.decode(raw)):
        items = _any_items.decode(given["items"])
        spare = () if subscription.current_period_end is None else ("current_period_end",)
        subscription.items = _Items([_lenient(_Item, item, *spare) for item in (items.data[:1] if items else [])])
    return subscription


def _checkout_session(raw: bytes) -> _CheckoutSession:
    """Decode a checkout session; only one for a subscription needs more than its mode."""
    try:
        return _checkout.decode(raw)
    except NOT_JSON:
        session = _lenient(_CheckoutSession, raw, "customer", "subscription", "metadata", "client_reference_id")
    if session.mode != _SUBSCRIPTION_MODE:
        return session
    return _lenient(_CheckoutSession, raw, "subscription", "client_reference_id")


def _subscription_facts(subscription: _SubscriptionObject, previous: msgspec.Raw | None) -> dict[str, Any]:
    items = subscription.items.data if subscription.items else []
    first = items[0] if items else _Item()
    period_end = subscription.current_period_end
    if period_end is None:
        period_end = first.current_period_end
    facts = _identity(subscription)
    facts["status"] = _text(subscription.status, "status")
    facts["price_id"] = _price(first.price)
    facts["current_period_end"] = _moment(period_end, "current_period_end")
    facts["cancel_at_period_end"] = bool(subscription.cancel_at_period_end)
    facts["previous"] = _previous(previous) if previous else None
    return facts


def _identity(subscription: _SubscriptionObject | _EndedSubscription) -> dict[str, Any]:
    """Return whose subscription it is; only the tenant must be valid."""
    return {
        "org_id": _org_id(subscription.metadata),
        "customer_id": _ref_if_any(subscription.customer),
        "subscription_id": _text_if_any(subscription.id),
        "subscription_created": _moment_if_any(subscription.created),
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
        first = _first_before(before)
    except (*NOT_JSON, ValueError):
        return None
    previous = {fact: getattr(before, fact) for fact in _PLAIN}
    if first.price is not None:
        previous["price_id"] = first.price.id if isinstance(first.price, _Price) else first.price
    if first.current_period_end is not None and previous["current_period_end"] is UNSET:
        previous["current_period_end"] = first.current_period_end
    named = {fact: value for fact, value in previous.items() if value is not UNSET}
    return named if all(_is_fact(value) for value in named.values()) else None


def _first_before(before: _Previous) -> _Item:
    """Return the first item as it was; ``plan`` is an old name of its price. Raises `ValueError` without an item."""
    if before.items is not UNSET:
        [first, *_] = msgspec.convert(before.items, _Items).data
        return first
    return _Item() if before.plan is UNSET else _Item(msgspec.convert(before.plan, _Price))


def _is_fact(value: object) -> TypeGuard[Fact]:
    if isinstance(value, str):
        return _is_text(value)
    return value is None or (isinstance(value, int) and 0 <= value <= EPOCH_MAX)


def _invoice_facts(invoice: _Invoice) -> dict[str, Any]:
    details = invoice.parent.subscription_details if invoice.parent else None
    url, currency = invoice.hosted_invoice_url, invoice.currency
    attempts, status = invoice.attempt_count, invoice.status
    return {
        "customer_id": _ref(invoice.customer),
        "invoice_id": _text_if_any(invoice.id),
        # optional: the mail shows these, or they order events of one second
        "invoice_url": url if isinstance(url, str) and _is_web_url(url) else None,
        "amount_due": _amount(invoice.amount_due),
        "amount_remaining": _amount(invoice.amount_remaining),
        "attempt_count": attempts if type(attempts) is int and 0 <= attempts <= _LARGEST_AMOUNT else None,
        "status": status if isinstance(status, str) and _is_text(status) else None,
        "currency": currency if isinstance(currency, str) and _is_text(currency) else None,
        "subscription_id": _ref_if_any(invoice.subscription or (details.subscription if details else None)),
    }


def _amount(value: object) -> int | None:
    return value if type(value) is int and abs(value) <= _LARGEST_AMOUNT else None


def _checkout_facts(session: _CheckoutSession, *, reference_links: bool) -> dict[str, Any]:
    mode = _text(session.mode, "mode")
    if mode != _SUBSCRIPTION_MODE:
        return {"checkout_mode": mode, "customer_id": _ref_if_any(session.customer)}
    org_id = _org_id(session.metadata)
    if org_id is None and reference_links and session.client_reference_id:
        org_id = session.client_reference_id if is_tenant_id(session.client_reference_id) else None
    return {
        "org_id": org_id,
        "customer_id": _ref(session.customer),
        "subscription_id": _ref_if_any(session.subscription),
        "checkout_mode": mode,
    }


def _org_id(metadata: dict[str, Any] | None) -> str | None:
    org_id = (metadata or {}).get("orgId")
    if org_id is None or org_id == "":
        return None
    if not isinstance(org_id, str) or not is_tenant_id(org_id):
        raise _MalformedError("metadata.orgId is not a tenant id")
    return org_id


def _price(price: _Price | str | None) -> str | None:
    return _text(price.id if isinstance(price, _Price) else price, "price.id")


# These functions raise `_MalformedError` for a malformed value; those with ``if_any`` return None instead.


def _ref(reference: str | _Ref | None) -> str | None:
    return _text(reference.id if isinstance(reference, _Ref) else reference, "reference") or None


def _ref_if_any(reference: str | _Ref | None) -> str | None:
    return _text_if_any(reference.id if isinstance(reference, _Ref) else reference) or None


def _text_if_any(text: str | None) -> str | None:
    return text if _is_text(text) else None


def _moment_if_any(seconds: int | None) -> int | None:
    return seconds if seconds is not None and 0 <= seconds <= EPOCH_MAX else None


def _text(text: str | None, where: str) -> str | None:
    if text is not None and not _is_text(text):
        raise _MalformedError(f"{where} is not a text of at most {_LONGEST_TEXT} characters without NUL")
    return text


def _is_text(text: str | None) -> bool:
    return text is None or (len(text) <= _LONGEST_TEXT and "\x00" not in text)


def _moment(seconds: int | None, where: str) -> int | None:
    if seconds is not None and not 0 <= seconds <= EPOCH_MAX:
        raise _MalformedError(f"{where} is out of range")
    return seconds


def _is_web_url(url: str) -> bool:
    is_plain = len(url) <= _LONGEST_URL and url.isascii() and url.isprintable() and " " not in url
    return is_plain and url.startswith(("https://", "http://"))

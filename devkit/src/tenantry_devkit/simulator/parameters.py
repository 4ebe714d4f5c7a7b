"""Parameters of the API's requests, pages of lists, and JSON responses."""

import operator
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec
from litestar import MediaType, Response
from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from tenantry_devkit.simulator.account import ApiError, missing, missing_parameter
from tenantry_devkit.simulator.objects import (
    BillingMode,
    Customer,
    FlowType,
    Json,
    MissingPaymentMethod,
    PauseCollection,
    PortalFlow,
    ProviderEvent,
    Subscription,
    indented_json,
)
from tenantry_devkit.simulator.subscriptions import ItemChange

FORM: Final = "application/x-www-form-urlencoded"
_NAME: Final = re.compile(r"[^\[\]]+(\[[^\[\]]*\])*")
_INVALID: Final = re.compile(
    r"(Object missing required field `(?P<missing>\w+)`|.*?)( - at `\$\.?(?P<place>.*)`)?"
)
_MOST: Final = 2000
S = TypeVar("S", bound=Struct)


def parse(*encoded: str) -> Json:
    """Parse queries and forms such as ``items[0][price]=price_pro&expand[]=customer``; an empty
    value is None.
    """
    values: Json = {}
    for text in encoded:
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST)
        except ValueError as error:
            raise ApiError(400, "Too many parameters.") from error
        for name, value in pairs:
            _put(values, name, value)
    return {name: _with_lists(name, value) for name, value in values.items()}


def _put(values: Json, name: str, value: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise ApiError(400, f"Invalid parameter name: {name}", param=name)
    *path, last = name.replace("]", "").split("[")
    for part in path:
        inner = values.setdefault(part or str(len(values)), {})
        if not isinstance(inner, dict):
            raise ApiError(400, "Invalid object", param=name)
        values = inner
    values[last or str(len(values))] = value or None


def _with_lists(name: str, value: Any) -> Any:  # noqa: ANN401
    """Turn objects with numbers as names into lists, in the order of the numbers."""
    if not isinstance(value, dict) or name == "metadata":
        return value
    inner = {key: _with_lists(key, each) for key, each in value.items()}
    return (
        [inner[key] for key in sorted(inner, key=int)]
        if all(key.isdecimal() for key in inner)
        else inner
    )


def decode(values: Mapping[str, Any], kind: type[S]) -> S:
    """Convert parameters; unknown ones are ignored. Raises `ApiError` for missing and invalid
    ones.
    """
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _api_error(str(error)) from None


def _api_error(message: str) -> ApiError:
    """Return the provider's error for the message of a ``msgspec.ValidationError``."""
    match = _INVALID.fullmatch(message)
    assert match is not None  # noqa: S101  # it matches any text
    names = filter(None, (match["place"], match["missing"]))
    param = re.sub(r"\.(\w+)", r"[\1]", ".".join(names))
    if match["missing"] or match[1].endswith("got `null`"):
        return missing_parameter(param)
    return ApiError(400, f"Invalid {param}: {match[1]}", param=param)


class Range(Struct):
    gt: int | None = None
    gte: int | None = None
    lt: int | None = None
    lte: int | None = None


def in_range(value: int, wanted: Range | int | None) -> bool:
    """Whether a value passes a filter such as ``created=...`` or ``created[gte]=...``."""
    if not isinstance(wanted, Range):
        return wanted in {None, value}
    bounds = (
        (operator.gt, wanted.gt),
        (operator.ge, wanted.gte),
        (operator.lt, wanted.lt),
        (operator.le, wanted.lte),
    )
    return all(compare(value, bound) for compare, bound in bounds if bound is not None)


class ListParameters(Struct):
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    starting_after: str | None = None
    created: Range | int | None = None

    def matches(self, thing: Any) -> bool:  # noqa: ANN401
        """Whether an object passes the filters; one that is named like an attribute is for its
        value.
        """
        shared = set(self.__struct_fields__) & set(thing.__struct_fields__) - {"created"}
        is_equal = all(getattr(self, name) in (None, getattr(thing, name)) for name in shared)
        return is_equal and in_range(thing.created, self.created)


T = TypeVar("T")
AtLeastOne = Annotated[list[T], Meta(min_length=1)]
Metadata = dict[str, str | None]
"""Null removes a key."""


class CustomerFields(Struct):
    """Of a new customer, or changes to one; null unsets a value."""

    email: str | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
    metadata: Metadata = {}

    @property
    def fields(self) -> dict[str, Any]:
        given = {"email": self.email, "name": self.name}
        return {name: value for name, value in given.items() if value is not UNSET}


class CustomerList(ListParameters):
    email: str | None = None

    def matches(self, thing: Customer) -> bool:
        return super().matches(thing) and not thing.deleted


class NewItem(Struct):
    price: str
    quantity: int | None = None


class BillingModeParameter(Struct):
    type: BillingMode | None = None


class EndBehavior(Struct):
    missing_payment_method: MissingPaymentMethod | None = None


class TrialSettings(Struct):
    end_behavior: EndBehavior = field(default_factory=EndBehavior)


class SubscriptionData(Struct, kw_only=True):
    """What a checkout says about its subscription."""

    metadata: Metadata = {}
    trial_period_days: int = 0
    trial_settings: TrialSettings = field(default_factory=TrialSettings)
    billing_mode: BillingModeParameter = field(default_factory=BillingModeParameter)

    @property
    def fields(self) -> dict[str, Any]:
        """The arguments of the simulator's methods."""
        missing_payment_method = self.trial_settings.end_behavior.missing_payment_method
        return {
            "trial_days": self.trial_period_days,
            "missing_payment_method": missing_payment_method or "create_invoice",
            "billing_mode": self.billing_mode.type,
        }


class NewSubscription(SubscriptionData, kw_only=True):
    customer: str
    items: AtLeastOne[NewItem]
    cancel_at_period_end: bool = False
    cancel_at: int | None = None
    payment_behavior: Literal["allow_incomplete"] = "allow_incomplete"


class SubscriptionChanges(Struct):
    items: tuple[ItemChange, ...] = ()
    metadata: Metadata | None = None
    cancel_at_period_end: bool | None = None
    cancel_at: int | UnsetType | None = UNSET
    pause_collection: PauseCollection | UnsetType | None = UNSET
    trial_end: int | Literal["now"] | None = None
    trial_settings: TrialSettings = field(default_factory=TrialSettings)


class SubscriptionList(ListParameters):
    customer: str | None = None
    price: str | None = None
    wanted_status: (
        Literal[
            "active",
            "all",
            "canceled",
            "ended",
            "incomplete",
            "incomplete_expired",
            "past_due",
            "paused",
            "trialing",
            "unpaid",
        ]
        | None
    ) = field(name="status", default=None)

    def matches(self, thing: Subscription) -> bool:
        has_price = self.price is None or any(item.price.id == self.price for item in thing.items)
        return super().matches(thing) and self._has_wanted_status(thing) and has_price

    def _has_wanted_status(self, thing: Subscription) -> bool:
        if self.wanted_status is None:
            return thing.status != "canceled"
        return self.wanted_status in {"all", thing.status, "ended" if thing.has_ended else None}


class ItemList(ListParameters, kw_only=True):
    subscription: str


class InvoiceList(ListParameters):
    """Checkout sessions have the same filters."""

    customer: str | None = None
    subscription: str | None = None
    status: str | None = None


class Enabled(Struct):
    enabled: bool = False


class CustomerUpdate(Struct):
    """What a checkout may store of what its buyer enters."""

    address: Literal["auto", "never"] = "never"
    name: Literal["auto", "never"] = "never"


class CheckoutParameters(Struct):
    mode: Literal["subscription"]
    line_items: AtLeastOne[NewItem]
    customer: str | None = None
    customer_email: str | None = None
    client_reference_id: str | None = None
    currency: str | None = None
    metadata: Metadata = {}
    subscription_data: SubscriptionData = field(default_factory=SubscriptionData)
    success_url: str | None = None
    cancel_url: str | None = None
    ui_mode: str = "hosted"
    allow_promotion_codes: bool = False
    automatic_tax: Enabled = field(default_factory=Enabled)
    tax_id_collection: Enabled = field(default_factory=Enabled)
    customer_update: CustomerUpdate = field(default_factory=CustomerUpdate)


class FlowRedirect(Struct):
    return_url: str | None = None


class AfterCompletion(Struct):
    type: Literal["redirect", "portal_homepage", "hosted_confirmation"] = "portal_homepage"
    redirect: FlowRedirect = field(default_factory=FlowRedirect)


class FlowItem(Struct):
    id: str
    price: str | None = None
    quantity: Annotated[int, Meta(ge=1)] | None = None


class FlowSubscription(Struct):
    """The subscription of a flow; an update to confirm has the one item to change."""

    subscription: str
    items: Annotated[list[FlowItem], Meta(max_length=1)] = []


class FlowData(Struct):
    type: FlowType
    after_completion: AfterCompletion = field(default_factory=AfterCompletion)
    subscription_cancel: FlowSubscription | None = None
    subscription_update: FlowSubscription | None = None
    subscription_update_confirm: FlowSubscription | None = None

    def to_flow(self) -> PortalFlow:
        """Return the flow; raises `ApiError` where its details are missing."""
        return_url = self.after_completion.redirect.return_url
        if self.type == "payment_method_update":
            return PortalFlow(type=self.type, return_url=return_url)
        details: FlowSubscription | None = getattr(self, self.type)
        if details is None:
            raise missing_parameter(f"flow_data[{self.type}]")
        flow = PortalFlow(
            type=self.type,
            subscription=details.subscription,
            return_url=return_url,
        )
        if self.type != "subscription_update_confirm":
            return flow
        if not details.items:
            raise missing_parameter(f"flow_data[{self.type}][items]")
        [item] = details.items
        return replace(flow, item=item.id, price=item.price, quantity=item.quantity)


class PortalParameters(Struct):
    customer: str
    return_url: str | None = None
    flow_data: FlowData | None = None


class PreviewParameters(Struct):
    subscription: str
    customer: str | None = None


class EventList(ListParameters):
    wanted_type: str | None = field(name="type", default=None)
    types: tuple[str, ...] = ()

    def matches(self, thing: ProviderEvent) -> bool:
        wanted = (self.wanted_type,) if self.wanted_type else self.types
        return super().matches(thing) and (
            not wanted or any(fnmatchcase(thing.type, each) for each in wanted)
        )


class Expansion(Struct):
    expand: tuple[str, ...] = ()


def page(newest_first: Sequence[Any], kind: type, given: ListParameters) -> tuple[list[Any], bool]:
    """Return the requested page, and whether there are more objects; raises `ApiError` for an
    unknown place.
    """
    rest = newest_first
    if given.starting_after is not None:
        ids = [thing.id for thing in newest_first]
        if given.starting_after not in ids:
            raise missing(kind, given.starting_after, param="starting_after")
        rest = newest_first[ids.index(given.starting_after) + 1 :]
    return list(rest[: given.limit]), len(rest) > given.limit


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response[bytes]:
    """Return JSON, indented like the provider's."""
    return Response(
        indented_json(value),
        status_code=status,
        media_type=MediaType.JSON,
        headers=headers,
    )

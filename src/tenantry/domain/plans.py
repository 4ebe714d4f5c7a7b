"""The plan catalog: features, plans and add-ons with their provider prices and limits, the access
by status, the roles of users, the scopes of keys, and the endpoints of webhooks.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeGuard, TypeVar, get_args

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain.features import (
    Feature,
    Features,
    added,
    counting_faults,
    value_faults,
)
from tenantry.domain.roles import BUILT_IN_ROLES, RoleEntry, Roles, gives_faults
from tenantry.domain.scopes import CatalogScope
from tenantry.domain.webhooks import WebhookEndpoint, WebhookEntry, number_fault

FREE: Final = "free"


class Limits(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    """The limits of a plan; an absent limit is no limit."""

    projects: Annotated[int | None, doc("Maximum projects in each mode.", 50)] = None
    api_keys: Annotated[int | None, doc("Maximum active API keys.", 100)] = None
    members: Annotated[int | None, doc("Maximum members and invitations.", 1000)] = None
    requests_per_minute: Annotated[
        int | None, doc("Maximum requests of the tenant in any 60 seconds.", 6000)
    ] = None
    requests_per_minute_per_key: Annotated[
        int | None, doc("Maximum requests of each API key or user in any 60 seconds.")
    ] = None


class Addon(msgspec.Struct, frozen=True):
    """An add-on: its limits and features are added to the plan's, for each unit that the tenant
    subscribes to.
    """

    id: str
    name: str
    stripe_price_ids: tuple[str, ...]
    limits: Limits
    features: Features = {}


class Plan(Addon, frozen=True):
    """A plan of the catalog. Of two plans of a tenant the one with the higher ``rank`` counts.

    A checkout offers ``trial_days`` to a tenant that has had no trial; 0 is no trial. With
    ``seats_follow_members`` the quantity at the provider follows the number of active members.
    """

    rank: int = 0
    trial_days: int = 0
    seats_follow_members: bool = False


AccessState = Literal["full", "grace", "none"]
OVER: Final = frozenset({"canceled", "incomplete_expired"})
"""The statuses of a subscription that has ended; they never give access."""
_ACCESS_STATES: Final = get_args(AccessState)
LARGEST_LIMIT: Final = 2**31 - 1


class Count(msgspec.Struct, frozen=True):
    """A number of things; with ``and_more`` there are more than ``number``."""

    number: int
    and_more: bool = False


def count_up_to(number: int, most: int) -> Count:
    """Return the count of things of which at most ``most`` + 1 were counted."""
    return Count(min(number, most), number > most)


class PlanLimit(msgspec.Struct, frozen=True):
    """A tenant's use of a plan's limit; None is no limit."""

    used: Count
    most: int | None

    @property
    def is_full(self) -> bool:
        """Whether the plan allows no more."""
        return self.most is not None and self.used.number >= self.most


class CatalogError(ValueError):
    """An invalid catalog; ``faults`` has one message for each fault."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class Catalog:
    """The plans, roles and webhooks of one deployment; plans are found by id or by price."""

    def __init__(
        self,
        plans: tuple[Plan, ...],
        addons: tuple[Addon, ...] = (),
        access: Mapping[str, AccessState] | None = None,
        features: tuple[Feature, ...] = (),
        roles: Roles = BUILT_IN_ROLES,
        webhooks: tuple[WebhookEndpoint, ...] = (),
        scopes: tuple[CatalogScope, ...] = (),
    ) -> None:
        """``access`` overrides the access of single statuses."""
        self.roles = roles
        self.webhooks = webhooks
        self.scopes = scopes
        self.plans = plans
        self.addons = addons
        self.access: Mapping[str, AccessState] = access or {}
        self._by_id = {plan.id: plan for plan in plans}
        self._addons = {addon.id: addon for addon in addons}
        self._plan_of_price = _ids_by_price(plans)
        self._addon_of_price = _ids_by_price(addons)
        self.features = {feature.id: feature for feature in features}
        """The features by id, in the order of the catalog."""
        periods = {each.usage_period for each in features if each.type == "metered"}
        self.has_billing_periods = "billing" in periods
        """Whether the use of a feature is counted by the tenant's billing period."""
        self.has_billing_months = "billing_month" in periods
        """Whether the use of a feature is counted by the tenant's billing month."""
        self.counts_requests = next((each for each in features if each.counts), None)
        """The feature whose use the service counts itself: the requests of a tenant."""

    def __contains__(self, plan_id: str) -> bool:
        return plan_id in self._by_id

    @property
    def has_member_seats(self) -> bool:
        """Whether the quantity of any plan follows the members."""
        return any(plan.seats_follow_members for plan in self.plans)

    def plan(self, plan_id: str) -> Plan | None:
        """Return the plan with this id; None for one that is not in the catalog."""
        return self._by_id.get(plan_id)

    def plan_at(self, price_id: str) -> Plan | None:
        """Return the plan with this provider price, if any."""
        return self._by_id.get(self._plan_of_price.get(price_id, ""))

    def addon(self, addon_id: str) -> Addon | None:
        """Return the add-on with this id; None for one that is not in the catalog."""
        return self._addons.get(addon_id)

    @property
    def price_ids(self) -> list[str]:
        """The provider prices of all plans and add-ons."""
        return [*self._plan_of_price, *self._addon_of_price]

    def plan_of_price(self, price_id: str | None) -> str | None:
        """Return the id of the plan with this provider price, if any."""
        return self._plan_of_price.get(price_id or "")

    def addon_of_price(self, price_id: str | None) -> str | None:
        """Return the id of the add-on with this provider price, if any."""
        return self._addon_of_price.get(price_id or "")

    def has_price(self, price_id: str) -> bool:
        """Whether a plan or an add-on has this provider price."""
        return price_id in self._plan_of_price or price_id in self._addon_of_price

    def rank(self, plan_id: str) -> int:
        """Return the rank of a plan; -1 for a plan that has left the catalog."""
        return self._by_id[plan_id].rank if plan_id in self else -1

    def name(self, plan_id: str) -> str:
        """Return the name of a plan; its id for a plan that has left the catalog."""
        return self._by_id[plan_id].name if plan_id in self else plan_id

    def addon_name(self, addon_id: str) -> str:
        """Return the name of an add-on; its id for one that has left the catalog."""
        return self._addons[addon_id].name if addon_id in self._addons else addon_id

    def feature_name(self, feature_id: str) -> str:
        """Return the name of a feature; its id for one that has left the catalog."""
        feature = self.features.get(feature_id)
        return feature_id if feature is None else feature.label

    def limits(self, plan_id: str, addons: Iterable[tuple[str, int]] = ()) -> Limits:
        """Return the limits of a plan with add-ons, given by id and quantity; an unlimited one
        stays so.

        Those of ``free`` for a plan that has left the catalog. An add-on that has left it does not
        count.
        """
        limits = self._by_id.get(plan_id, self._by_id[FREE]).limits
        for addon_id, quantity in addons:
            if addon := self._addons.get(addon_id):
                limits = _raised(limits, addon.limits, quantity)
        return limits

    def given_features(self, plan_id: str, addons: Iterable[tuple[str, int]] = ()) -> Features:
        """Return the features of a plan with add-ons, given by id and quantity.

        A plan or an add-on that has left the catalog counts as for `limits`.
        """
        given = self._by_id.get(plan_id, self._by_id[FREE]).features
        for addon_id, quantity in addons:
            if addon := self._addons.get(addon_id):
                given = _with_more(given, addon.features, quantity)
        return given


def _with_more(given: Features, more: Features, quantity: int) -> Features:
    raised = {name: added(given.get(name), value, quantity) for name, value in more.items()}
    return {**given, **raised}


def _ids_by_price(offers: Iterable[Addon]) -> dict[str, str]:
    return {price: offer.id for offer in offers for price in offer.stripe_price_ids}


def _raised(limits: Limits, by: Limits, quantity: int) -> Limits:
    raised = {
        name: min(most + (getattr(by, name) or 0) * quantity, LARGEST_LIMIT)
        for name in Limits.__struct_fields__
        if (most := getattr(limits, name)) is not None
    }
    return Limits(**raised)


_ID: Final = re.compile(r"[!-~]{1,64}")
_Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_LIMIT)] | None
_Price = Annotated[str, msgspec.Meta(min_length=1)]


class _LimitsEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    projects: _Number = None
    api_keys: _Number = None
    members: _Number = None
    requests_per_minute: _Number = None
    requests_per_minute_per_key: _Number = None


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    name: str | None = None
    stripe_price_id: _Price | tuple[_Price, ...] = ()
    limits: _LimitsEntry = _LimitsEntry()
    features: dict[str, Any] = {}  # `value_faults` checks them

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError("id must be 1 to 64 visible ASCII characters")
        if self.name is not None and not self.name.strip():
            raise ValueError("name must not be blank")

    @property
    def prices(self) -> tuple[str, ...]:
        given = self.stripe_price_id
        return (given,) if isinstance(given, str) else given

    @property
    def all_limits(self) -> Limits:
        return Limits(**msgspec.structs.asdict(self.limits))


class _PlanEntry(_Entry, frozen=True, forbid_unknown_fields=True):
    rank: int | None = None
    # The provider's longest trial is two years.
    trial_days: Annotated[int, msgspec.Meta(ge=1, le=730)] | None = None
    seats: Literal["members"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.id == FREE and (self.trial_days or self.seats):
            raise ValueError(f"trial_days and seats are of plans that are sold, and {FREE} is not")


_CATALOG_KEYS: Final = ("features", "plans", "addons", "access", "roles", "scopes", "webhooks")
_ENTRY_ID: Final = attrgetter("id")
_ENTRY_NAME: Final = attrgetter("name")
_ENTRY_PRICES: Final = attrgetter("prices")
AnyEntry = TypeVar("AnyEntry", bound=_Entry | Feature | RoleEntry | CatalogScope | WebhookEntry)


def _no_files(path: str) -> str:
    raise ValueError(f"{path} cannot be read here")


def parse_catalog(text: str, read_file: Callable[[str], str] = _no_files) -> Catalog:
    """Parse a catalog in TOML. ``read_file`` returns the text of a file that the catalog names, and
    raises `ValueError` if it cannot.

    Raises `CatalogError` with the first fault of each entry, and those of the whole.
    """
    document = _parse_toml(text)
    faults = [f"unknown key {key!r}" for key in document if key not in _CATALOG_KEYS]
    plans = _entries(document.get("plans", []), "plan", _PlanEntry, faults)
    addons = _entries(document.get("addons", []), "addon", _Entry, faults)
    of_features: list[str] = []
    features = _entries(document.get("features", []), "feature", Feature, of_features)
    of_features += _repeated("feature", map(_ENTRY_ID, features))
    # of an invalid list it is not known what the others may give
    faults += of_features or _given_faults(features, plans, addons)
    faults += _repeated("plan", map(_ENTRY_ID, plans))
    faults += _repeated("addon", map(_ENTRY_ID, addons))
    faults += _repeated("price", chain.from_iterable(map(_ENTRY_PRICES, (*plans, *addons))))
    access = _access(document.get("access", {}), faults)
    roles = _roles(document.get("roles", []), faults)
    scopes = _entries(document.get("scopes", []), "scope", CatalogScope, faults)
    faults += _repeated("scope", map(_ENTRY_ID, scopes))
    webhooks = _webhooks(document.get("webhooks", []), read_file, faults)
    if _lacks_free_plan(document.get("plans", [])):
        faults.append(f"the plan {FREE!r} is missing: it is the fallback and downgrade plan")
    if faults:
        raise CatalogError(faults)
    return Catalog(
        tuple(map(_to_plan, plans, count())),
        tuple(map(_to_addon, addons)),
        access,
        tuple(features),
        roles,
        webhooks,
        tuple(scopes),
    )


def _roles(listed: object, faults: list[str]) -> Roles:
    of_roles: list[str] = []
    entries = _entries(listed, "role", RoleEntry, of_roles)
    of_roles += _repeated("role", map(_ENTRY_ID, entries))
    # of an invalid list it is not known which roles the others may give
    faults += of_roles or gives_faults(entries)
    return Roles([entry.to_role() for entry in entries])


def _webhooks(
    listed: object, read_file: Callable[[str], str], faults: list[str]
) -> tuple[WebhookEndpoint, ...]:
    entries = _entries(listed, "webhook", WebhookEntry, faults, id_field="name")
    faults += _repeated("webhook", map(_ENTRY_NAME, entries))
    if fault := number_fault(entries):
        faults.append(fault)
    endpoints = []
    for entry in entries:
        try:
            endpoints.append(entry.to_endpoint(read_file))
        except ValueError as error:
            faults.append(f"webhook {entry.name!r}: {error}")
    return tuple(endpoints)


def _given_faults(
    features: Sequence[Feature], plans: Sequence[_PlanEntry], addons: Sequence[_Entry]
) -> Iterator[str]:
    """Yield the faults of the features that plans and add-ons give."""
    known = {feature.id: feature for feature in features}
    for kind, entries in (("plan", plans), ("addon", addons)):
        for entry in entries:
            for fault in value_faults(entry.features, known):
                yield f"{kind} {entry.id!r}: {fault}"
    yield from counting_faults(features, {plan.id: plan.features for plan in plans})


def _parse_toml(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: a number that is too long
        raise CatalogError([f"not TOML: {error}"]) from error


def _repeated(kind: str, names: Iterable[str]) -> list[str]:
    """Return the faults of names that occur more than once."""
    return [
        f"{kind} {name!r} occurs twice" for name, number in Counter(names).items() if number > 1
    ]


def _lacks_free_plan(listed: object) -> bool:
    """Whether no plan is the free one. A faulty entry is not missing."""
    if not _is_list_of_tables(listed):
        return False
    return all(entry.get("id") != FREE for entry in listed)


def _to_plan(entry: _PlanEntry, position: int) -> Plan:
    rank = position if entry.rank is None else entry.rank
    return Plan(
        entry.id,
        entry.name or entry.id,
        entry.prices,
        entry.all_limits,
        entry.features,
        rank,
        entry.trial_days or 0,
        entry.seats == "members",
    )


def _to_addon(entry: _Entry) -> Addon:
    return Addon(
        entry.id,
        entry.name or entry.id,
        entry.prices,
        entry.all_limits,
        entry.features,
    )


def _entries(
    listed: object,
    kind: str,
    entry_type: type[AnyEntry],
    faults: list[str],
    *,
    id_field: str = "id",
) -> list[AnyEntry]:
    """Return the valid entries of a list of tables; add the first fault of each other one, which
    names it by ``id_field``.
    """
    if not _is_list_of_tables(listed):
        faults.append(f"{kind}s: must be a list of tables, [[{kind}s]]")
        return []
    valid = []
    for number, entry in enumerate(listed, start=1):
        try:
            valid.append(msgspec.convert(entry, entry_type))
        except msgspec.ValidationError as error:
            has_id = id_field in entry
            where = f"{kind} {entry[id_field]!r}" if has_id else f"{kind} number {number}"
            faults.append(f"{where}: {error}{_hint(str(error))}")
    return valid


def _hint(message: str) -> str:
    """Say where limits belong that tenantry does not enforce."""
    is_own_limit = "unknown field" in message and message.endswith("`$.limits`")
    return ". A limit of your own is a feature: see [[features]]" if is_own_limit else ""


def _is_list_of_tables(listed: object) -> TypeGuard[list[dict[str, object]]]:
    return isinstance(listed, list) and all(isinstance(entry, dict) for entry in listed)


def _access(table: object, faults: list[str]) -> dict[str, AccessState]:
    if not isinstance(table, dict):
        faults.append("access: must be a table, [access]")
        return {}
    for status, state in table.items():
        if status in OVER:
            faults.append(f"access: a subscription that is {status} never has access")
        elif state not in _ACCESS_STATES:
            faults.append(f"access.{status}: must be one of {', '.join(_ACCESS_STATES)}")
    return table

"""The plan catalog: plans, their provider prices and limits."""

import re
import tomllib
from collections import Counter
from typing import Annotated, Final

import msgspec

from tenantry.common.encoding import doc

FREE: Final = "free"


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """The limits of a plan; an absent limit is no limit."""

    projects: Annotated[int | None, doc("Maximum projects in each mode.", 50)] = None
    api_keys: Annotated[int | None, doc("Maximum active API keys.", 100)] = None
    members: Annotated[int | None, doc("Maximum members and invitations.", 1000)] = None
    requests_per_minute: Annotated[int | None, doc("Maximum requests of the tenant in any 60 seconds.", 6000)] = None
    requests_per_minute_per_key: Annotated[
        int | None, doc("Maximum requests of each API key or user in any 60 seconds.")
    ] = None


class Plan(msgspec.Struct, frozen=True):
    """One entry of the catalog."""

    id: str
    name: str
    stripe_price_ids: tuple[str, ...]
    limits: Limits


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
    """The plans of one deployment, found by id or by price."""

    def __init__(self, plans: tuple[Plan, ...]) -> None:
        self.plans = plans
        self._by_id = {plan.id: plan for plan in plans}
        self._plan_of_price = {price: plan.id for plan in plans for price in plan.stripe_price_ids}

    def __contains__(self, plan_id: str) -> bool:
        return plan_id in self._by_id

    def plan_of_price(self, price_id: str) -> str | None:
        """Return the id of the plan with this provider price, if any."""
        return self._plan_of_price.get(price_id)

    def name(self, plan_id: str) -> str:
        """Return the name of a plan; its id for a plan that has left the catalog."""
        return self._by_id[plan_id].name if plan_id in self else plan_id

    def limits(self, plan_id: str) -> Limits:
        """Return the limits of a plan; those of ``free`` for a plan that has left the catalog."""
        return self._by_id.get(plan_id, self._by_id[FREE]).limits


_PLAN_ID: Final = re.compile(r"[!-~]{1,64}")
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None
_Price = Annotated[str, msgspec.Meta(min_length=1)]


class _LimitsEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    projects: _Number = None
    api_keys: _Number = None
    members: _Number = None
    requests_per_minute: _Number = None
    requests_per_minute_per_key: _Number = None


class _PlanEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    name: str | None = None
    stripe_price_id: _Price | tuple[_Price, ...] = ()
    limits: _LimitsEntry = _LimitsEntry()

    def __post_init__(self) -> None:
        if not _PLAN_ID.fullmatch(self.id):
            raise ValueError("id must be 1 to 64 visible ASCII characters")
        if self.name is not None and not self.name.strip():
            raise ValueError("name must not be blank")


def parse_catalog(text: str) -> Catalog:
    """Parse a catalog in TOML. Raises `CatalogError` with the first fault of each plan, and those of the whole."""
    try:  # tomllib raises a plain ValueError for a number that is too long
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise CatalogError([f"not TOML: {error}"]) from error
    faults = [f"unknown key {key!r}" for key in document if key != "plans"]
    entries = document.get("plans", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise CatalogError([*faults, "plans: must be a list of tables, [[plans]]"])
    plans = []
    for number, entry in enumerate(entries, start=1):
        try:
            read = msgspec.convert(entry, _PlanEntry)
            prices = (read.stripe_price_id,) if isinstance(read.stripe_price_id, str) else read.stripe_price_id
            plans.append(Plan(read.id, read.name or read.id, prices, Limits(**msgspec.structs.asdict(read.limits))))
        except msgspec.ValidationError as error:
            where = f"plan {entry['id']!r}" if "id" in entry else f"plan number {number}"
            faults.append(f"{where}: {error}")
    plan_ids = Counter(plan.id for plan in plans)
    price_ids = Counter(price for plan in plans for price in plan.stripe_price_ids)
    faults += [f"plan {plan_id!r} occurs twice" for plan_id, number in plan_ids.items() if number > 1]
    faults += [f"price {price!r} occurs twice" for price, number in price_ids.items() if number > 1]
    if FREE not in {entry.get("id") for entry in entries}:
        faults.append(f"the plan {FREE!r} is missing: it is the fallback and downgrade plan")
    if faults:
        raise CatalogError(faults)
    return Catalog(tuple(plans))

"""The plan catalog: plans, their provider prices and limits."""

import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Final

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


_PLAN_KEYS: Final = {"id", "name", "stripe_price_id", "limits"}
_LIMIT_KEYS: Final = {"projects", "api_keys", "members", "requests_per_minute", "requests_per_minute_per_key"}
_MOST_PER_LIMIT: Final = 2**31 - 1


def parse_catalog(text: str) -> Catalog:
    """Parse a catalog in TOML. Raises `CatalogError` with one message for each fault."""
    try:  # tomllib raises a plain ValueError for a number that is too long
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise CatalogError([f"not TOML: {error}"]) from error
    faults = [f"unknown key {key!r}" for key in document if key != "plans"]
    entries = document.get("plans", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise CatalogError([*faults, "plans: must be a list of tables, [[plans]]"])
    plans = [_parse_plan(number, entry, faults) for number, entry in enumerate(entries, start=1)]
    _check_unique(plans, faults)
    if FREE not in {plan.id for plan in plans}:
        faults.append(f"the plan {FREE!r} is missing: it is the fallback and downgrade plan")
    if faults:
        raise CatalogError(faults)
    return Catalog(tuple(plans))


def _parse_plan(number: int, entry: Mapping[str, Any], faults: list[str]) -> Plan:
    plan_id = entry.get("id")
    where = f"plan {plan_id!r}" if isinstance(plan_id, str) and plan_id else f"plan number {number}"
    faults += [f"{where}: unknown key {key!r}" for key in entry if key not in _PLAN_KEYS]
    if not isinstance(plan_id, str) or not _is_header_text(plan_id, 64):
        faults.append(f"{where}: id must be 1 to 64 visible ASCII characters")
        plan_id = f"#{number}"
    name = entry.get("name", plan_id)
    if not isinstance(name, str) or not name.strip():
        faults.append(f"{where}: name must be a text that is not empty")
        name = plan_id
    return Plan(
        plan_id,
        name,
        _parse_prices(where, entry.get("stripe_price_id", []), faults),
        _parse_limits(where, entry.get("limits", {}), faults),
    )


def _is_header_text(text: str, longest: int) -> bool:
    return 0 < len(text) <= longest and text.isascii() and text.isprintable() and " " not in text


def _parse_prices(where: str, prices: object, faults: list[str]) -> tuple[str, ...]:
    listed = [prices] if isinstance(prices, str) else prices
    if isinstance(listed, list) and all(isinstance(price, str) and price for price in listed):
        return tuple(listed)
    faults.append(f"{where}: stripe_price_id must be a price id or a list of them")
    return ()


def _parse_limits(where: str, limits: object, faults: list[str]) -> Limits:
    if not isinstance(limits, dict):
        faults.append(f"{where}: limits must be a table")
        return Limits()
    good = {}
    for key, limit in limits.items():
        if key not in _LIMIT_KEYS:
            faults.append(f"{where}: unknown limit {key!r}")
        elif isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= _MOST_PER_LIMIT:
            faults.append(f"{where}: limit {key} must be a whole number, 0 to {_MOST_PER_LIMIT}")
        else:
            good[key] = limit
    return Limits(**good)


def _check_unique(plans: list[Plan], faults: list[str]) -> None:
    seen: set[str] = set()
    owner: dict[str, str] = {}
    for plan in plans:
        if plan.id in seen:
            faults.append(f"plan {plan.id!r} occurs twice")
        seen.add(plan.id)
        for price in plan.stripe_price_ids:
            if owner.get(price) == plan.id:
                faults.append(f"plan {plan.id!r}: price {price!r} occurs twice")
            elif price in owner:
                faults.append(f"price {price!r} belongs to both {owner[price]!r} and {plan.id!r}")
            owner.setdefault(price, plan.id)

"""Grants: a plan, features or limits that the operator gives one tenant, until a time or for
good.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, Final

import msgspec

from tenantry.common.clock import EPOCH_MAX, from_epoch
from tenantry.common.encoding import camel_case, doc, with_full_stop
from tenantry.domain.access import GrantedFeatures, GrantedLimits
from tenantry.domain.errors import GrantLimitReachedError, ValidationError
from tenantry.domain.features import (
    FeatureValue,
    feature_words,
    greater,
    number_of,
    value_faults,
    value_of,
)
from tenantry.domain.plan_words import limit_list
from tenantry.domain.plans import FREE, LARGEST_LIMIT, Catalog, Limits
from tenantry.domain.reasons import LONGEST_REASON, reason_faults

MOST_GRANTS: Final = 50
"""How many grants of a tenant may count at the same time."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_LIMITS: Final = {camel_case(field): field for field in Limits.__struct_fields__}
"""The fields of limits by their names in the API."""


class GrantTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a grant gives, until which second (None: for good), and why."""

    name: str
    plan: str | None = None
    features: GrantedFeatures = ()
    limits: GrantedLimits = ()
    until: int | None = None
    reason: str = ""

    @property
    def ends_at(self) -> datetime | None:
        """When it ends by time."""
        return from_epoch(self.until)

    def counts_at(self, second: float) -> bool:
        """Whether its time has not passed."""
        return self.until is None or second < self.until

    @property
    def sentence(self) -> str:
        """The reason for the access that it gives."""
        return with_full_stop(f"By contract: {self.reason}")


class HeldGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """A grant of a tenant: its terms, since which second, and when the operator ended it."""

    terms: GrantTerms
    set_at: int
    ended_at: int | None = None

    def counts_at(self, second: float) -> bool:
        """Whether it has not ended, by the operator or by time."""
        return self.ended_at is None and self.terms.counts_at(second)


class Grant(msgspec.Struct, frozen=True, rename="camel"):
    """A grant of a tenant, as the operator sees it."""

    name: Annotated[str, doc("Its name, which is unique in the tenant.", "contract-2027")]
    plan: Annotated[str | None, doc("The plan that it gives; null if none.", "business")]
    features: Annotated[
        dict[str, FeatureValue],
        doc("The features that it gives: `true`, or a number.", {"sso": True}),
    ]
    limits: Annotated[
        dict[str, int],
        doc("The limits that it raises to these, by their names in a plan.", {"projects": 500}),
    ]
    until: Annotated[
        datetime | None,
        doc("When it ends; null if it does not.", "2028-01-01T00:00:00Z"),
    ]
    reason: Annotated[
        str, doc("Why the tenant has it. The tenant sees it.", "Contract 2027-014, by invoice")
    ]
    set_at: Annotated[datetime, doc("When it was last set.", "2026-12-01T09:00:00Z")]
    ended_at: Annotated[
        datetime | None, doc("When the operator ended it; null if that has not happened.", None)
    ]

    @property
    def gives(self) -> list[str]:
        """What it gives, by ids: ``plan pro``, ``sso``, ``projects 500``."""
        plan = [] if self.plan is None else [f"plan {self.plan}"]
        features = [
            name if value is True else f"{name} {value}" for name, value in self.features.items()
        ]
        return [*plan, *features, *(f"{name} {number}" for name, number in self.limits.items())]


def grant_of(held: HeldGrant) -> Grant:
    """Return a grant as the operator sees it."""
    terms = held.terms
    return Grant(
        terms.name,
        terms.plan,
        {name: value_of(number) for name, number in terms.features},
        {camel_case(field): number for field, number in terms.limits},
        from_epoch(terms.until),
        terms.reason,
        from_epoch(held.set_at),
        from_epoch(held.ended_at),
    )


class GrantInput(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The terms of a grant as the operator gives them; ``limits`` by their names in the API."""

    reason: Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=LONGEST_REASON),
        doc("Why the tenant has it. The tenant sees it.", "Contract 2027-014, by invoice"),
    ]
    plan: Annotated[str | None, doc("A plan of the catalog.", "business")] = None
    features: Annotated[
        dict[str, FeatureValue],
        doc("Features of the catalog: `true`, which has no limit, or a number."),
    ] = {}
    limits: Annotated[
        dict[str, int],
        doc("Limits by their names in a plan; a lower one changes nothing.", {"projects": 500}),
    ] = {}
    until: Annotated[
        Annotated[datetime, msgspec.Meta(tz=True)] | None,
        doc("When it ends by itself; null if it does not.", "2028-01-01T00:00:00Z"),
    ] = None


def new_terms(name: str, wanted: GrantInput, catalog: Catalog, now: datetime) -> GrantTerms:
    """Return the terms of a grant that begins now. Raises `ValidationError` with all faults.

    Fractions of a second of ``until`` are left out.
    """
    until = None if wanted.until is None else int(wanted.until.timestamp())
    faults = [
        *_name_faults(name),
        *_plan_faults(wanted, catalog),
        *_feature_faults(wanted, catalog),
        *_limit_faults(wanted),
        *reason_faults(wanted.reason),
    ]
    if until is not None and until <= now.timestamp():
        faults.append(("until", "must be in the future"))
    if until is not None and until > EPOCH_MAX:  # west of Greenwich, the year 9999 ends later
        faults.append(("until", "is too far away"))
    if faults:
        raise ValidationError(*faults)
    limits = {_LIMITS[name]: number for name, number in wanted.limits.items()}
    return GrantTerms(
        name,
        wanted.plan,
        tuple(sorted((name, number_of(value)) for name, value in wanted.features.items())),
        tuple(sorted(limits.items())),
        until,
        wanted.reason,
    )


def _name_faults(name: str) -> Iterator[tuple[str, str]]:
    if not _NAME.fullmatch(name):
        yield "name", "must be 1 to 64 of A-Za-z0-9_-"


def _plan_faults(wanted: GrantInput, catalog: Catalog) -> Iterator[tuple[str, str]]:
    plan = wanted.plan
    if plan is not None and plan not in catalog:
        yield "plan", f"{plan!r} is not in the plan catalog"
    if plan == FREE:
        yield "plan", f"every organization has {FREE!r} without a grant"
    if plan is None and not wanted.features and not wanted.limits:
        yield "plan", "a grant must give a plan, features or limits"


def _feature_faults(wanted: GrantInput, catalog: Catalog) -> Iterator[tuple[str, str]]:
    for fault in value_faults(wanted.features, catalog.features):
        yield "features", fault


def _limit_faults(wanted: GrantInput) -> Iterator[tuple[str, str]]:
    known = ", ".join(_LIMITS)
    for name, number in wanted.limits.items():
        if name not in _LIMITS:
            yield "limits", f"unknown limit {name!r}; there are {known}"
        elif not 0 <= number <= LARGEST_LIMIT:
            yield "limits", f"{name} must be 0 to {LARGEST_LIMIT}"


def check_number_of_grants(others: Iterable[HeldGrant], now: datetime) -> None:
    """Raise `GrantLimitReachedError` if a tenant with these ``others`` may have no further
    grant.
    """
    second = now.timestamp()
    counted = [each for each in others if each.counts_at(second)]
    if len(counted) < MOST_GRANTS:
        return
    raise GrantLimitReachedError(
        f"The organization has {MOST_GRANTS} grants. End one of them first."
    )


def check_expected(current: GrantTerms | None, expected: GrantTerms | None) -> None:
    """Raise `ValidationError` if the terms that count now are not those that the operator saw; None
    is no grant.
    """
    if current == expected:
        return
    if expected is None:
        raise ValidationError(("name", "there is a grant of this name. Change that one"))
    raise ValidationError(("plan", "the grant was changed meanwhile. Save again to see it"))


def combined_features(grants: Iterable[GrantTerms]) -> GrantedFeatures:
    """Return the features of grants together; of several values the greatest."""
    combined = dict[str, FeatureValue]()
    for terms in grants:
        for name, number in terms.features:
            value = value_of(number)
            combined[name] = greater(combined.get(name), value) or value
    return tuple((name, number_of(value)) for name, value in sorted(combined.items()))


def combined_limits(grants: Iterable[GrantTerms]) -> GrantedLimits:
    """Return the limits of grants together; of several numbers the greatest."""
    combined = dict[str, int]()
    for terms in grants:
        for name, number in terms.limits:
            combined[name] = max(combined.get(name, number), number)
    return tuple(sorted(combined.items()))


def given_words(terms: GrantTerms, catalog: Catalog) -> list[str]:
    """Say what a grant gives, by the catalog's names: ``plan Pro``, ``sso``, ``500 projects``."""
    plan = [] if terms.plan is None else [f"plan {catalog.name(terms.plan)}"]
    features = [
        feature_words(catalog.features[name], value_of(number))
        if name in catalog.features
        else name
        for name, number in terms.features
    ]
    return [*plan, *features, *limit_list(Limits(**dict(terms.limits)))]


def terms_words(terms: GrantTerms) -> str:
    """Say what a grant gives and until when: ``plan pro, sso, projects 500, until 2027-01-01``."""
    grant = grant_of(HeldGrant(terms, set_at=0))
    until = [] if grant.until is None else [f"until {grant.until:%Y-%m-%d %H:%M:%S} UTC"]
    return ", ".join([*grant.gives, *until])

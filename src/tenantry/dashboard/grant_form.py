"""The form of a grant: its fields, and the terms that an operator typed."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from tenantry.common.clock import from_epoch
from tenantry.common.encoding import camel_case
from tenantry.dashboard.context import PageContext
from tenantry.dashboard.forms import Form, InvalidFormError, field_errors
from tenantry.dashboard.labels import isolated, labels
from tenantry.domain.errors import ValidationError
from tenantry.domain.features import Feature, FeatureValue
from tenantry.domain.grants import (
    GrantInput,
    GrantTerms,
    HeldGrant,
    grant_of,
    new_terms,
    terms_words,
)
from tenantry.domain.plans import FREE, Catalog

_NUMBER: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
_UNLIMITED: Final = "unlimited"
_FEATURE: Final = "feature-"
_LIMIT: Final = "limit-"
_NO_NAME: Final = "Enter a name: up to 64 letters, digits, _ and -."
_NO_REASON: Final = "Enter a reason."
_NO_TIME: Final = "Enter a day and a time, such as 2027-12-31 23:59."


def limit_fields() -> list[tuple[str, str]]:
    """Return the name and the label of the field of each limit."""
    return [(_LIMIT + camel_case(name), text) for name, text in labels().plan_limits.items()]


def plan_choices(terms: GrantTerms | None, catalog: Catalog) -> list[tuple[str, str]]:
    """Return the plans that a grant may give, after none, and the one that it gives."""
    names = [(plan.id, isolated(plan.name)) for plan in catalog.plans if plan.id != FREE]
    if terms and terms.plan and terms.plan not in catalog:
        names.append((terms.plan, f"{terms.plan} (no longer in the catalog)"))
    return [("", "None"), *names]


def features_of(terms: GrantTerms | None, catalog: Catalog) -> list[Feature]:
    """Return the features that a grant may give, and those that it gives. One that is no longer in
    the catalog is shown as a box, so that it isn't lost unseen.
    """
    given = [name for name, _ in terms.features] if terms else []
    lost = [name for name in given if name not in catalog.features]
    return [*catalog.features.values(), *(Feature(id=name, type="boolean") for name in lost)]


def further_fields(features: Iterable[Feature]) -> list[str]:
    """Return the names of the fields of features and limits."""
    return [*(_FEATURE + one.id for one in features), *(name for name, _ in limit_fields())]


def values_of(terms: GrantTerms | None, catalog: Catalog) -> dict[str, str]:
    """Return the fields with which the form begins; None for a new grant."""
    further = further_fields(features_of(terms, catalog))
    values = dict.fromkeys(["name", "plan", "ends", "reason", *further], "")
    if terms is None:
        return values
    grant = grant_of(HeldGrant(terms, set_at=0))
    features = {_FEATURE + name: _shown(value) for name, value in grant.features.items()}
    limits = {_LIMIT + name: str(number) for name, number in grant.limits.items()}
    ends = from_epoch(terms.until)
    others = {
        "name": terms.name,
        "plan": terms.plan or "",
        "ends": f"{ends:%Y-%m-%dT%H:%M:%S}" if ends else "",
        "reason": terms.reason,
    }
    return {**values, **features, **limits, **others}


def submitted_values(form: Form, values: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a rejected form: a box that is not checked is not sent."""
    return {name: form.text(name) for name in values}


def words_of(terms: GrantTerms) -> str:
    """Say what a grant gives, until when and why."""
    return f"{terms_words(terms)}. {terms.reason}"


def read(ctx: PageContext, name: str, held: GrantTerms | None) -> tuple[GrantInput, GrantTerms]:
    """Return what a form gives a grant, as input and as terms; ``held`` are those that it has.
    Raises `InvalidFormError` with all faults.
    """
    form, catalog = ctx.form, ctx.services.catalog
    faults = dict[str, str]()
    wanted = GrantInput(
        reason=form.text("reason"),
        plan=form.text("plan") or None,
        features=dict(_read_features(form, features_of(held, catalog), faults)),
        limits=dict(_read_limits(form, faults)),
        until=_read_end(form, faults),
    )
    try:
        terms = new_terms(name, wanted, catalog, ctx.services.clock())
    except ValidationError as error:
        found = field_errors(error)
        if "until" in found:
            found["ends"] = found.pop("until")
        if "name" in found:
            found["name"] = _NO_NAME
        if not wanted.reason:
            found["reason"] = _NO_REASON
        raise InvalidFormError({**found, **faults}) from error
    if faults:
        raise InvalidFormError(faults)
    return wanted, terms


def _shown(value: FeatureValue) -> str:
    return _UNLIMITED if value is True else str(value)


def _read_features(
    form: Form, features: Iterable[Feature], faults: dict[str, str]
) -> Iterator[tuple[str, FeatureValue]]:
    for feature in features:
        text = form.text(_FEATURE + feature.id)
        if not text:
            continue
        if _is_all(feature, text):
            yield feature.id, True
        elif _NUMBER.fullmatch(text):
            yield feature.id, int(text)
        else:
            faults["features"] = f"{feature.label}: enter a whole number, or {_UNLIMITED}."


def _is_all(feature: Feature, text: str) -> bool:
    return feature.type == "boolean" or text.lower() == _UNLIMITED


def _read_limits(form: Form, faults: dict[str, str]) -> Iterator[tuple[str, int]]:
    for name, label in limit_fields():
        text = form.text(name)
        if _NUMBER.fullmatch(text):
            yield name.removeprefix(_LIMIT), int(text)
        elif text:
            faults["limits"] = f"{label}: enter a whole number."


def _read_end(form: Form, faults: dict[str, str]) -> datetime | None:
    text = form.text("ends")
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        faults["ends"] = _NO_TIME
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

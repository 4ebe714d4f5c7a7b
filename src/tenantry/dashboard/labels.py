"""The text of values, messages and changes on pages. `labels.toml` has the texts of values."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from itertools import chain, starmap
from typing import Any, Final, NamedTuple

import msgspec
from markupsafe import Markup

from tenantry.common.clock import from_epoch
from tenantry.domain.access import AccessPhase, stored_phases
from tenantry.domain.audit import Action, TenantUpdate
from tenantry.domain.billing.events import Outcome
from tenantry.domain.operator_acts import OperatorAction
from tenantry.domain.permissions import AccessLevel, RequestPrincipal, role_grants
from tenantry.domain.plan_words import format_amount
from tenantry.domain.plans import Catalog
from tenantry.domain.roles import BUILT_IN_ROLES, Role, Roles
from tenantry.domain.scopes import CatalogScope, covers, is_scope
from tenantry.domain.usage import RequestOutcome


class Label(msgspec.Struct, frozen=True):
    """A short text, its explanation, and the color of its tag."""

    short: str
    long: str = ""
    color: str = ""


class Labels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tables of `labels.toml`."""

    subscription_statuses: dict[str, str]
    subscription_problems: dict[str, str]
    status_changes: dict[str, str]
    invoice_statuses: dict[str, str]
    plan_limits: dict[str, str]
    event_types: dict[str, str]
    outcomes: dict[Outcome, Label]
    request_outcomes: dict[RequestOutcome, Label]
    rejection_codes: dict[str, Label]
    limits: dict[str, str]
    unproven_addresses: dict[str, str]
    anomalies: dict[str, Label]
    refunds: dict[str, str]
    disputes: dict[str, str]
    fields: dict[str, str]
    form_fields: dict[str, str]
    page_actions: dict[str, str]
    scope_groups: dict[str, dict[str, str]]
    wildcard_scopes: dict[str, str]
    audit_actions: dict[Action, Label]
    tenant_updates: dict[TenantUpdate, Label]
    operator_actions: dict[OperatorAction, Label]
    browsers: dict[str, str]
    systems: dict[str, str]

    @property
    def scopes(self) -> dict[str, str]:
        return dict(chain.from_iterable(map(dict.items, self.scope_groups.values())))


@cache
def labels() -> Labels:
    content = resources.files(__package__).joinpath("labels.toml").read_bytes()
    return msgspec.toml.decode(content, type=Labels)


def event_types_named(text: str) -> tuple[str, ...]:
    """Return the types of events whose label contains a text, case-insensitive; none for an empty
    text.
    """
    wanted = text.casefold()
    names = labels().event_types.items()
    return tuple(name for name, label in names if wanted and wanted in label.casefold())


# the Unicode categories of control and format characters, and of separators
_INVISIBLE: Final = frozenset({"C", "Z"})


def shown_name(name: str, fallback: str) -> str:
    """Return the name, or ``fallback`` if it has only blanks and invisible characters."""
    is_visible = any(unicodedata.category(letter)[0] not in _INVISIBLE for letter in name)
    return name if is_visible else fallback


_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "RLE", "RLO", "RLI"})  # bidirectional classes (UAX 9)
_FIRST_STRONG_ISOLATE: Final = "\u2068"
_POP_DIRECTIONAL_ISOLATE: Final = "\u2069"


def isolated(text: str) -> str:
    """Isolate a text from the text around it, where that has no markup: titles, attributes and
    messages.

    A text without letters of a right-to-left script stays as it is.
    """
    if not any(unicodedata.bidirectional(letter) in _RIGHT_TO_LEFT for letter in text):
        return text
    kind = type(text)  # markup stays markup
    return kind(_FIRST_STRONG_ISOLATE) + text + kind(_POP_DIRECTIONAL_ISOLATE)


class ShownScope(NamedTuple):
    """A scope in the forms for keys. Those of tenantry have no name."""

    id: str
    about: str
    name: str = ""


class ShownCatalog:
    """The plan catalog as templates see it: each name is `isolated`."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.plans = catalog.plans
        self._scope_names = {scope.id: isolated(scope.name) for scope in catalog.scopes}
        self.scope_groups = _scope_groups(catalog.scopes)
        """The scopes that forms offer, by their heading: first those of the operator's API."""

    def scope_label(self, scope: str) -> str:
        """Say what a scope allows; empty for one that is not known."""
        return self._scope_names.get(scope) or scope_label(scope)

    def name(self, plan_id: str) -> str:
        return isolated(self._catalog.name(plan_id))

    def addon_name(self, addon_id: str) -> str:
        return isolated(self._catalog.addon_name(addon_id))

    def feature_name(self, feature_id: str) -> str:
        return isolated(self._catalog.feature_name(feature_id))


# Roles and permissions

_NO_GROUP: Final = "API"
"""The heading of scopes of the catalog that have none."""


def _scope_groups(own: Iterable[CatalogScope]) -> dict[str, list[ShownScope]]:
    groups = dict[str, list[ShownScope]]()
    for scope in own:
        shown = ShownScope(scope.id, scope.about or "", scope.name)
        groups.setdefault(scope.group or _NO_GROUP, []).append(shown)
    for group, scopes in labels().scope_groups.items():
        groups.setdefault(group, []).extend(starmap(ShownScope, scopes.items()))
    return groups


class RoleNames(dict[str, str]):
    """The names of roles by id, each `isolated`. A role that has left the catalog has its id."""

    def __missing__(self, role_id: str) -> str:
        return f"{role_id} (no longer a role)"


def role_names(roles: Roles) -> RoleNames:
    """Return the names of the roles, the lowest first."""
    return RoleNames({role.id: isolated(role.name) for role in reversed(list(roles))})


_BUILT_IN_HELP: Final = (
    "Members manage projects and see billing. Admins also manage keys, billing, members and admins."
    " Owners manage everything."
)


def role_help(roles: Roles) -> str:
    """Say what each role may do: of a role of the catalog, its scopes."""
    own = [role for role in roles if role.id not in BUILT_IN_ROLES]
    of_own = [f"{isolated(role.name)}: {', '.join(role.scopes)}." for role in own]
    return " ".join([_BUILT_IN_HELP, *of_own])


def role_label(role: Role, principal: RequestPrincipal) -> str:
    """Return the role's name, and what restricts it: another role, or the token's scopes."""
    scopes, level = role_grants(role, ())
    name = isolated(role.name)
    if role.limited_by is not None:
        name += f", limited to what {isolated(role.limited_by)} also allows"
    is_restricted = set(scopes) != set(principal.scopes) or level is not principal.access_level
    return name + (", restricted by your identity provider" if is_restricted else "")


def denial_text(
    role: Role, token_scopes: tuple[str, ...], scope: str, owner_only: str | None
) -> str:
    """Say why a user may not do what needs ``scope``, and who may. ``owner_only`` as for
    `RoleTooLowError`.
    """
    action = owner_only or labels().page_actions.get(scope, f"use the scope {scope}")
    scopes, level = role_grants(role, ())
    restrictions = [one for one in token_scopes if is_scope(one)]
    is_role_enough = covers(scopes, scope) and (owner_only is None or level is AccessLevel.OWNER)
    if restrictions and is_role_enough:
        return f"Your identity provider restricted your sign-in to {', '.join(restrictions)}. You can't {action}."
    who = "an owner" if owner_only else "an owner or admin"
    return f"Your role, {role.id}, can't {action}. Ask {who} of the organization."


def scope_label(scope: str) -> str:
    """Say what a scope allows; empty for a scope of the tenant's own services."""
    known = labels().scopes
    texts = known | labels().wildcard_scopes
    if scope in texts:
        return texts[scope]
    resource, _, action = scope.partition(":")
    if resource == "*":
        return f"{action} on everything"
    if action == "*" and any(one.startswith(f"{resource}:") for one in known):
        return f"Everything with {resource}"
    return ""


def browser_label(agent: str | None) -> str:
    """Return the probable meaning of a ``User-Agent``, such as "Firefox on Linux"."""
    browser = _first_match(labels().browsers, agent or "")
    system = _first_match(labels().systems, agent or "")
    if system:
        return f"{browser or 'A browser'} on {system}"
    return browser or "An unknown browser"


def _first_match(names: Mapping[str, str], text: str) -> str:
    """Return the name of the first pattern that a text contains; empty if it contains none."""
    return next((name for pattern, name in names.items() if re.search(pattern, text)), "")


# Money


def show_amount(amount: int | None, currency: str | None) -> Markup | None:
    """Format an amount in the smallest unit, such as ``29.00 EUR``; the script writes it as the
    reader's language does. None without a valid currency.
    """
    text = format_amount(amount, currency)
    if text is None:
        return None
    number, _, code = text.rpartition(" ")
    element = Markup('<data value="{}" data-currency="{}">{}</data>')
    return element.format(number.replace(",", ""), code, text)


# Changes of records

Record = msgspec.Struct | Mapping[str, Any] | None

_REPEATED_FIELDS: Final = frozenset({"createdAt", "createdBy", "id", "orgId", "updatedAt"})
"""Fields that only repeat what a page says beside the changes."""


class Change(NamedTuple):
    """A changed field. Values are text, or moments that templates format; None is an empty
    value.
    """

    label: str
    before: str | datetime | None
    after: str | datetime | None


def changes(before: Record, after: Record, catalog: Catalog) -> list[Change]:
    """Return the fields that differ between two states of a record, by the API's names. None is a
    missing record.
    """
    old, new = (
        msgspec.to_builtins(state or {}, builtin_types=(datetime,)) for state in (before, after)
    )
    found = [
        Change(
            field_label(name),
            shown_value(name, old.get(name), catalog),
            shown_value(name, new.get(name), catalog),
        )
        for name in {**old, **new}
        if name not in _REPEATED_FIELDS
    ]
    return [change for change in found if change.before != change.after]


def field_label(name: str) -> str:
    """Return the label of an API field, such as "Last used" for ``lastUsedAt``."""
    words = re.sub("([A-Z])", r" \1", name).lower().removesuffix(" at")
    return labels().fields.get(name) or words.capitalize()


def shown_value(name: str, value: Any, catalog: Catalog) -> str | datetime | None:  # noqa: ANN401  # any JSON
    """Return a field's value as a page shows it; None for an empty one."""
    if value is None or isinstance(value, datetime):
        return value
    text = _text_of(value)
    if name == "plan" and text:
        return catalog.name(text)
    if name == "access":
        return _access_words(text, catalog)
    if name in ("subscriptionStatus", "providerStatus"):
        text = labels().subscription_statuses.get(text, text)
    return _moment_of(text) or text or None


_CUT: Final = "…"
"""The end of a value that a run has shortened."""


def _access_words(stored: str, catalog: Catalog) -> str:
    """Say what access a tenant has until when, from its stored phases; the last ones may be cut."""
    whole = stored
    if stored.endswith(_CUT):
        whole = stored.rpartition(",{")[0] + "]"
    try:
        phases = [_phase_words(phase, catalog) for phase in stored_phases(whole)]
    except msgspec.DecodeError:
        return stored
    if whole != stored:
        phases.append(_CUT)
    return with_times(", then ".join(phases))


def _phase_words(phase: AccessPhase, catalog: Catalog) -> str:
    plan = catalog.name(phase.plan)
    words = {
        "none": f"none: the limits of the plan {plan} apply",
        "grace": f"grace period, with the limits of the plan {plan}",
        "full": f"full, with the limits of the plan {plan}",
    }[phase.state]
    until = from_epoch(phase.until)
    return words if until is None else f"{words}, until {until:%Y-%m-%d %H:%M:%S} UTC"


def _text_of(value: Any) -> str:  # noqa: ANN401  # any JSON
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}={text}" for name, text in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _moment_of(text: str) -> datetime | None:
    """Return the moment that a text is in the API's form, if it is one."""
    if not text[:1].isdigit() or not text.endswith("Z"):
        return None
    try:
        return msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        return None


# Times

_TIME_IN_TEXT: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC)")


def with_times(text: str) -> Markup:
    """Return a text in which each time in UTC is an element that the script makes local."""
    return Markup("").join(map(_shown_part, _TIME_IN_TEXT.split(text)))


def with_code(text: str) -> Markup:
    """Return a text in which what stands between backquotes is code."""
    code = Markup("<code>{}</code>")
    parts = enumerate(text.split("`"))
    return Markup("").join(code.format(part) if at % 2 else part for at, part in parts)


_TENANT: Final = re.compile(r"(?<![\w./-])(?:([Aa]) )?([Tt])enant(?=s?\b(?![-.]\w))")


def with_organizations(text: str) -> str:
    """Return a text of the API or of commands with the word that pages have for a tenant."""
    return _TENANT.sub(_organization, text)


def _organization(found: re.Match[str]) -> str:
    article, letter = found.groups()
    word = "Organization" if letter == "T" else "organization"
    return f"{article}n {word}" if article else word


def _shown_part(part: str) -> str:
    if not _TIME_IN_TEXT.fullmatch(part):
        return part
    moment = _moment_of(part.removesuffix(" UTC").replace(" ", "T") + "Z")
    return part if moment is None else show_time(moment)  # people can type a day 99


def show_time(moment: datetime, text: str = "%b %Y, %H:%M UTC", attribute: str = "") -> Markup:
    """Format a moment; the script replaces it by the reader's local time, and its title is exact.

    The reader's language may be written from right to left: the element is isolated from the text
    around it.

    ``attribute`` tells the script another precision than the minute: ``data-seconds`` or
    ``data-day``.
    """
    moment = moment.astimezone(UTC)
    return _time_element(moment, f"{moment.day} {moment.strftime(text)}", attribute)


_SPANS: Final = ((24 * 3600, "day"), (3600, "hour"), (60, "minute"))
"""Units of distances, the longest first, in seconds."""
_LONGEST_DISTANCE: Final = 30 * 24 * 3600
"""Seconds. A date says more from here on."""


def show_distance(moment: datetime, now: datetime) -> Markup:
    """Format a moment as its distance from ``now``, such as "3 hours ago" or "in 12 days"; from 30
    days on, as its date. The script keeps the distance current, and gives the title the reader's
    zone.
    """
    moment = moment.astimezone(UTC)
    seconds = (moment - now).total_seconds()
    if abs(seconds) >= _LONGEST_DISTANCE:
        return show_time(moment, "%b %Y", "data-day")
    return _time_element(moment, distance_text(seconds), "data-distance")


def distance_text(seconds: float) -> str:
    """Return a distance in words; the future is positive."""
    length = abs(seconds)
    size, unit = next((span for span in _SPANS if length >= span[0]), (0, ""))
    if not size:
        return "in less than a minute" if seconds > 0 else "just now"
    count = int(length // size)
    words = f"{count} {unit}{'' if count == 1 else 's'}"
    return f"in {words}" if seconds > 0 else f"{words} ago"


def _time_element(moment: datetime, shown: str, attribute: str) -> Markup:
    element = Markup('<time datetime="{}"{} title="{}" dir="auto">{}</time>')
    return element.format(
        moment.isoformat(timespec="seconds"),
        attribute and f" {attribute}",
        moment.strftime("%Y-%m-%d %H:%M:%S UTC"),
        shown,
    )

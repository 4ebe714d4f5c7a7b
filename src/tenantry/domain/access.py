"""What a tenant's subscriptions give it at a moment: full access, grace, or none."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Final, NamedTuple, Protocol

import msgspec

from tenantry.common.clock import from_epoch
from tenantry.common.encoding import doc
from tenantry.domain.plans import FREE, OVER, AccessState, Catalog, Limits

NO_SUBSCRIPTION: Final = "none"
_DEFAULTS: Final[dict[str, AccessState]] = {
    "trialing": "full",
    "active": "full",
    "past_due": "grace",
}

_REMEMBERED: Final = 256

Addons = tuple[tuple[str, int], ...]
"""Add-ons by id, with their quantities."""
GrantedFeatures = tuple[tuple[str, int | None], ...]
"""Features that grants give, by id: a number, or None where that has no limit or is boolean. Not
True, which Python takes for 1: terms and phases are compared, and are keys of a cache.
"""
GrantedLimits = tuple[tuple[str, int], ...]
"""Limits that grants give, by the field of `Limits`."""


class AccessPhase(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tenant's access until a second; None without an end.

    ``features`` and ``limits`` are those of the tenant's grants in this phase, of several the
    greatest. They count in every state.
    """

    state: AccessState
    plan: str
    reason: str
    until: int | None = None
    addons: Addons = ()
    features: GrantedFeatures = ()
    limits: GrantedLimits = ()


NOTHING: Final = AccessPhase("none", FREE, "There is no subscription.")
"""The access of a tenant that has neither a subscription nor a plan from the operator."""


class TenantAccess(msgspec.Struct, frozen=True, rename="camel"):
    """The access of a tenant now."""

    state: Annotated[
        AccessState,
        doc(
            "What the subscriptions give: `full`, `grace` (a payment is due) or `none`. Credentials work in each; "
            "`none` means the limits of the plan `free`, also for a tenant that never had a subscription.",
            "full",
        ),
    ]
    plan: Annotated[str, doc("The plan whose limits count; `free` without access.", "pro")]
    until: Annotated[
        datetime | None,
        doc(
            "The first moment when any of the access changes without another event: the plan or its grace period, "
            "add-ons, or what a grant gives; null if nothing does. The plan may stay: ask again then.",
            "2027-01-05T09:30:00Z",
        ),
    ]
    reason: Annotated[str, doc("Why, in one sentence.", "The subscription is active.")]


class PlanNames(Protocol):
    """The plan catalog, of the service or as pages show it."""

    def name(self, plan_id: str) -> str: ...


class AccessEnding(NamedTuple):
    """The end of a phase by time: its second, and the phases before and after it."""

    second: int
    before: AccessPhase
    after: AccessPhase

    @property
    def at(self) -> datetime:
        """The moment."""
        return from_epoch(self.second)

    @property
    def ends_plan(self) -> bool:
        """Whether the plan ends, and not only add-ons or what grants give beside a plan."""
        before, after = self.before, self.after
        return before.state != "none" and (after.state == "none" or after.plan != before.plan)

    @property
    def words(self) -> str:
        """Say what ends, and which plan counts then."""
        before, after = self.before, self.after
        if self.ends_plan:
            what = "the grace period of plan" if before.state == "grace" else "plan"
            return f"{what} {before.plan} ends, then the limits of plan {after.plan} count"
        if after.state != before.state:
            return f"full access to plan {before.plan} ends, then a grace period counts"
        if after.addons != before.addons:
            return "add-ons end"
        return "granted features or limits end"


_phases: Final = msgspec.json.Decoder(tuple[AccessPhase, ...])


def statuses_that_give(state: AccessState, catalog: Catalog) -> list[str]:
    """Return the statuses of a subscription that give ``full`` access or ``grace``; all others give
    none.
    """
    access_by_status = {**_DEFAULTS, **catalog.access}
    return sorted(status for status, given in access_by_status.items() if given == state)


def access_of_status(status: str, catalog: Catalog) -> AccessState | None:
    """Return the access that a subscription of this status gives; None if it is over."""
    if status in OVER:
        return None
    return catalog.access.get(status) or _DEFAULTS.get(status, "none")


@lru_cache(_REMEMBERED)  # every request asks
def phase_of_status(plan: str, status: str, catalog: Catalog) -> AccessPhase:
    """Return the access of a tenant of this plan and status, as far as they say by themselves."""
    if status == NO_SUBSCRIPTION:
        if plan == FREE:
            return NOTHING
        # only where the row was written by hand: the access of grants has phases
        return AccessPhase("full", plan, "The plan needs no subscription.")
    state = access_of_status(status, catalog)
    if state in ("full", "grace"):
        return AccessPhase(state, plan, sentence(status))
    return AccessPhase("none", FREE, sentence(status))


def plan_at(plan: str, status: str, phase: AccessPhase) -> str:
    """Return the plan of a tenant in this phase: without a subscription that of its grants, which
    end by time.
    """
    return phase.plan if status == NO_SUBSCRIPTION else plan


def is_subscribed(status: str, reported_status: str | None = None) -> bool:
    """Whether a tenant of this status has a subscription that has not ended.

    ``reported_status`` is the one that the subscription events last gave, if known: a failed
    payment for a subscription that has ended makes a tenant past due again.
    """
    return status not in (*OVER, NO_SUBSCRIPTION) and reported_status not in OVER


def sentence(status: str) -> str:
    """Return the reason for the access of a subscription of this status."""
    return (
        "The subscription has ended."
        if status in OVER
        else f"The subscription is {status_words(status)}."
    )


def status_words(status: str) -> str:
    """Return a status as words of a sentence."""
    return status.replace("_", " ")


def current_phase(
    stored: str | None, plan: str, status: str, now: float, catalog: Catalog
) -> AccessPhase:
    """Return the access of a tenant at ``now``, in seconds since the Unix epoch.

    ``stored`` is the JSON of its phases; None where plan and status say everything.
    """
    if stored is None:
        return phase_of_status(plan, status, catalog)
    return phase_at(_phases.decode(stored), now)


def phase_at(phases: Sequence[AccessPhase], now: float) -> AccessPhase:
    """Return the first phase that has not ended at ``now``; the last one has no end."""
    return next((phase for phase in phases if phase.until is None or now < phase.until), phases[-1])


def stored_phases(stored: str) -> tuple[AccessPhase, ...]:
    """Return the phases of a stored access. Raises `msgspec.DecodeError`."""
    return _phases.decode(stored)


def endings(stored: str | None, now: float) -> list[AccessEnding]:
    """Return what ends by time after ``now``, in order; ``stored`` as for `current_phase`."""
    phases = () if stored is None else _phases.decode(stored)
    return [
        AccessEnding(before.until, before, after)
        for before, after in pairwise(phases)
        if before.until is not None and now < before.until
    ]


def plan_end(coming: Iterable[AccessEnding]) -> AccessEnding | None:
    """Return the end of the plan among the `endings` of an access; None if time does not end it."""
    return next((ending for ending in coming if ending.ends_plan), None)


def end_reason(phases: Sequence[AccessPhase], end: int) -> str:
    """Say what changed when one of these phases ended at ``end``, and why."""
    before = phase_at(phases, end - 1)
    after = phase_at(phases, end)
    if after.state == "none" and before.state != "none":
        return f"Access to plan {before.plan} has ended. {after.reason}"
    if (after.state, after.plan) != (before.state, before.plan):
        return f"Access to plan {before.plan} has ended, and that to plan {after.plan} counts. {after.reason}"
    ended = "Add-ons" if after.addons != before.addons else "Granted features or limits"
    return f"{ended} have ended. {after.reason}"


def to_access(phase: AccessPhase) -> TenantAccess:
    """Return a phase as the API shows it."""
    return TenantAccess(phase.state, phase.plan, from_epoch(phase.until), phase.reason)


def limits_of(phase: AccessPhase, catalog: Catalog) -> Limits:
    """Return the limits that count now: a grant raises those of plan and add-ons to its own, and
    lowers none.
    """
    limits = catalog.limits(phase.plan, phase.addons)
    return _with_granted(limits, phase.limits) if phase.limits else limits


def _with_granted(limits: Limits, granted: GrantedLimits) -> Limits:
    raised = dict[str, int]()
    for name, number in granted:
        most = getattr(limits, name)
        if most is not None:  # an unlimited one stays so
            raised[name] = max(most, number)
    return msgspec.structs.replace(limits, **raised)


def limits_from(phase: AccessPhase, catalog: PlanNames) -> str:
    """Name the plan whose limits count, and the grants that may raise them."""
    name = catalog.name(phase.plan)
    return f"{name} with your contract" if phase.limits else name


def limit_text(phase: AccessPhase, plan: str, catalog: Catalog, allowed: str) -> str:
    """Say that the plan allows only so much; of a tenant that lost the access of its ``plan``, also
    why.
    """
    text = f"The plan {limits_from(phase, catalog)} allows {allowed}."
    return f"{text} {phase.reason}" if phase.state == "none" and plan != FREE else text

"""What the followed events must be, compared with the database and with what was acknowledged."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import psycopg

from bench.torture.deployment import Deployment
from bench.torture.follower import FollowedEvent
from tenantry.domain.outbound_events import EventType

SHARED: Final = "shared"
"""The tenant whose name two writers change."""
_ORDER: Final = """
SELECT 'evt_' || version FROM outbound_events WHERE type NOT LIKE 'audit.%' ORDER BY epoch, xid, version
"""
_TENANTS: Final = """
SELECT id, name, plan, subscription_status, suspended_at IS NOT NULL FROM tenants WHERE deleted_at IS NULL
"""
_RENAMED: Final = """
SELECT before->>'name', after->>'name' FROM audit_events WHERE org_id = %s AND action = 'tenant.updated'
"""
_KINDS: Final = ("tenant", "api_key", "member")


class Change(NamedTuple):
    """A change that was acknowledged: its event's type, and the object's id and name after it."""

    type: str
    object_id: str
    name: str = ""


class FeedState(NamedTuple):
    """What the database holds at the end."""

    order: list[str]
    """The ids of all events in the order of the feed."""
    tenants: dict[str, tuple[Any, ...]]
    """Name, plan, status and suspension of each tenant."""
    renamed: set[tuple[str, str]]
    """The names before and after each change of the shared tenant's, by the audit trail."""


def read_state(site: Deployment) -> FeedState:
    """Read the state from the primary."""
    with psycopg.connect(site.conninfo) as connection:
        order = [row[0] for row in connection.execute(_ORDER).fetchall()]
        tenants = {row[0]: tuple(row[1:]) for row in connection.execute(_TENANTS).fetchall()}
        renamed = {(row[0], row[1]) for row in connection.execute(_RENAMED, (SHARED,)).fetchall()}
    return FeedState(order, tenants, renamed)


class FeedResult(NamedTuple):
    """How the followed events differ from what they must be."""

    committed: int
    followed: int
    missing: int
    """Committed events that were not followed."""
    lost: int
    """Followed events that the database lacks: an asynchronous failover may lose them."""
    twice: int
    unordered: int
    """Neighbors in another order than that of the database."""
    unpublished: int
    """Acknowledged changes without a followed event."""
    reversed: int
    """Events whose version is higher than that of a later state of the object."""
    stale: int
    """Tenants whose newest followed event has another state than the database."""


def compare(
    state: FeedState,
    followed: Sequence[FollowedEvent],
    acknowledged: set[Change],
    plan_changes: Counter[str],
) -> FeedResult:
    """Compare the followed events with the committed ones and with the acknowledged changes;
    ``plan_changes`` are those of plans, by tenant.
    """
    committed = set(state.order)
    ids = [event.id for event in followed]
    counts = Counter(ids)
    places = {event_id: place for place, event_id in enumerate(state.order)}
    own = [places[event_id] for event_id in ids if event_id in places]
    return FeedResult(
        committed=len(committed),
        followed=len(counts),
        missing=len(committed - counts.keys()),
        lost=len(counts.keys() - committed),
        twice=counts.total() - len(counts),
        unordered=sum(first >= second for first, second in pairwise(own)),
        unpublished=len(acknowledged - set(_changes(followed)))
        + (plan_changes - _plan_changes(followed)).total(),
        reversed=len(list(reversals(followed, state))),
        stale=sum(_is_stale(event, state) for event in _newest_of_tenants(followed)),
    )


def _changes(followed: Sequence[FollowedEvent]) -> Iterator[Change]:
    for event in followed:
        object_id = str(event.data["id"])
        yield Change(event.type, object_id)
        yield Change(event.type, object_id, str(event.data.get("name", "")))


def _plan_changes(followed: Sequence[FollowedEvent]) -> Counter[str]:
    return Counter(event.org_id for event in followed if event.type == EventType.ACCESS_CHANGED)


def _by_object(
    followed: Sequence[FollowedEvent],
) -> dict[tuple[str, str], list[FollowedEvent]]:
    """Return the events of each object, sorted by version."""
    found: defaultdict[tuple[str, str], list[FollowedEvent]] = defaultdict(list)
    for event in sorted(followed, key=lambda event: event.version):
        kind = event.type.partition(".")[0]
        if kind in _KINDS:
            found[kind, str(event.data["id"])].append(event)
    return found


def reversals(followed: Sequence[FollowedEvent], state: FeedState) -> Iterator[str]:
    """Describe the neighbors of each object of which the second cannot follow the first."""
    for versions in _by_object(followed).values():
        for first, second in pairwise(versions):
            if not _may_follow(first, second, state):
                yield f"{_described(first)}, then {_described(second)}"


def _described(event: FollowedEvent) -> str:
    shown = {name: event.data.get(name) for name in ("id", "name", "plan", "role", "revokedAt")}
    return f"{event.id} {event.type} {shown}"


def _may_follow(first: FollowedEvent, second: FollowedEvent, state: FeedState) -> bool:
    if first.type.startswith("api_key."):
        return _key_state(first) <= _key_state(second)
    if first.type.startswith("member."):
        return _MEMBER_STATES.index(first.type) < _MEMBER_STATES.index(second.type)
    if second.type == EventType.ACCESS_CHANGED:
        return bool(first.data["plan"] != second.data["plan"])
    if second.org_id == SHARED:
        return (first.data["name"], second.data["name"]) in state.renamed
    return _TENANT_STATES.index(first.type) < _TENANT_STATES.index(second.type)


def _key_state(event: FollowedEvent) -> tuple[bool, str]:
    """Return what only grows: the writer numbers the names."""
    return event.data["revokedAt"] is not None, event.data["name"]


_MEMBER_STATES: Final = (
    EventType.MEMBER_INVITED,
    EventType.MEMBER_UPDATED,
    EventType.MEMBER_REMOVED,
)
_TENANT_STATES: Final = (
    EventType.TENANT_CREATED,
    EventType.TENANT_UPDATED,
    EventType.TENANT_SUSPENDED,
    EventType.TENANT_ENDED,
)


def _newest_of_tenants(followed: Sequence[FollowedEvent]) -> Iterator[FollowedEvent]:
    for (kind, _), versions in _by_object(followed).items():
        if kind == "tenant" and "plan" in versions[-1].data:
            yield versions[-1]


def _is_stale(event: FollowedEvent, state: FeedState) -> bool:
    data = event.data
    shown = (data["name"], data["plan"], data["subscriptionStatus"], data["suspended"])
    stored = state.tenants.get(event.org_id)
    return event.type != EventType.TENANT_ENDED and stored != shown

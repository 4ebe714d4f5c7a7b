"""What the followed events must be, compared with the database and with what was acknowledged."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import psycopg

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
_STATES: Final = (
    EventType.KEY_CREATED,
    EventType.KEY_UPDATED,
    EventType.KEY_REVOKED,
    EventType.MEMBER_INVITED,
    EventType.MEMBER_UPDATED,
    EventType.MEMBER_REMOVED,
    EventType.TENANT_CREATED,
    EventType.TENANT_UPDATED,
    EventType.TENANT_SUSPENDED,
    EventType.TENANT_ENDED,
)
"""The events of an object in the order in which a writer causes them; an update may be repeated."""


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


def read_state(conninfo: str) -> FeedState:
    """Read the state from a database."""
    with psycopg.connect(conninfo) as connection:
        order = [row[0] for row in connection.execute(_ORDER).fetchall()]
        tenants = {row[0]: tuple(row[1:]) for row in connection.execute(_TENANTS).fetchall()}
    return FeedState(order, tenants)


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
    unpublished = acknowledged - set(_changes(followed))
    return FeedResult(
        committed=len(committed),
        followed=len(counts),
        missing=len(committed - counts.keys()),
        lost=len(counts.keys() - committed),
        twice=counts.total() - len(counts),
        unordered=sum(first >= second for first, second in pairwise(own)),
        unpublished=len(unpublished) + (plan_changes - _plan_changes(followed)).total(),
        reversed=_reversals(followed),
        stale=_stale_tenants(followed, state),
    )


def _changes(followed: Sequence[FollowedEvent]) -> Iterator[Change]:
    for event in followed:
        object_id = str(event.data["id"])
        yield Change(event.type, object_id)
        yield Change(event.type, object_id, str(event.data.get("name", "")))


def _plan_changes(followed: Sequence[FollowedEvent]) -> Counter[str]:
    return Counter(event.org_id for event in followed if event.type == EventType.ACCESS_CHANGED)


def _reversals(followed: Sequence[FollowedEvent]) -> int:
    """Count the neighbors of each object of which the second has an earlier state."""
    states: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for event in sorted(followed, key=lambda event: event.version):
        if event.type in _STATES and event.org_id != SHARED:
            # the writer of keys numbers their names
            name = event.data["name"] if event.type == EventType.KEY_UPDATED else ""
            states[str(event.data["id"])].append((_STATES.index(EventType(event.type)), name))
    return sum(first > second for own in states.values() for first, second in pairwise(own))


def _stale_tenants(followed: Sequence[FollowedEvent], state: FeedState) -> int:
    shown = {
        event.org_id: event
        for event in sorted(followed, key=lambda event: event.version)
        if event.type.startswith("tenant.") and "plan" in event.data
    }
    return sum(_is_stale(event, state) for event in shown.values())


def _is_stale(event: FollowedEvent, state: FeedState) -> bool:
    data = event.data
    shown = (data["name"], data["plan"], data["subscriptionStatus"], data["suspended"])
    return event.type != EventType.TENANT_ENDED and state.tenants.get(event.org_id) != shown

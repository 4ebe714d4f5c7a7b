"""The simulated account: its objects, events, clock, agenda and errors. Times are in seconds since
the Unix epoch.
"""

import heapq
import itertools
from calendar import monthrange
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from tenantry.common.clock import Clock, from_epoch
from tenantry_devkit.simulator.objects import (
    BillingObject,
    Card,
    CheckoutSession,
    Customer,
    Ids,
    Invoice,
    Item,
    PortalSession,
    Price,
    ProviderEvent,
    ProviderObject,
    Subscription,
    WebhookEndpoint,
)

_DAYS: Final = {"day": 1, "week": 7}
_MONTHS: Final = {"month": 1, "year": 12}

S = TypeVar("S")
T = TypeVar("T", bound=ProviderObject)
B = TypeVar("B", bound=BillingObject)


class SimulatedClock:
    """Stands still until it is moved, or follows ``running`` if that is given."""

    def __init__(self, start: int, *, running: Clock | None = None) -> None:
        self._clock = running or (lambda: from_epoch(0))
        self._since = self._clock()
        self._moment = start

    def now(self) -> int:
        return self._moment + int((self._clock() - self._since).total_seconds())

    def move_to(self, moment: int) -> None:
        """Advance to ``moment``; ignore an earlier one."""
        self._moment += max(0, moment - self.now())


class Task(NamedTuple):
    """An action by name, with its arguments."""

    moment: int
    action: str
    arguments: tuple[str | int, ...]


class Schedule(Generic[S]):
    """Items by the moment when they are due, then in the order in which they were added."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, S]] = []
        self._numbers = itertools.count()

    def add(self, moment: int, item: S) -> None:
        heapq.heappush(self._entries, (moment, next(self._numbers), item))

    def items(self) -> list[S]:
        return [item for _, _, item in sorted(self._entries)]

    def next_moment(self) -> int | None:
        return self._entries[0][0] if self._entries else None

    def take_due(self, now: int) -> Iterator[S]:
        """Remove and return what is due by ``now``, including items that are added meanwhile."""
        while self._entries and self._entries[0][0] <= now:
            yield heapq.heappop(self._entries)[2]


def period_end(anchor: int, interval: str, count: int, after: int) -> int:
    """Return the first end of a billing period later than ``after``; periods are counted from
    ``anchor``.

    Monthly periods end on the anchor's day, or on the last day of a shorter month.
    """
    if interval in _DAYS:
        length = _DAYS[interval] * count * 86_400
        return anchor + ((after - anchor) // length + 1) * length
    start = datetime.fromtimestamp(anchor, UTC)
    step = _MONTHS[interval] * count
    ends = (int(_months_later(start, number * step).timestamp()) for number in itertools.count(1))
    return next(end for end in ends if end > after)


def _months_later(start: datetime, months: int) -> datetime:
    years, month = divmod(start.month - 1 + months, 12)
    year, month = start.year + years, month + 1
    return start.replace(
        year=year,
        month=month,
        day=min(start.day, monthrange(year, month)[1]),
    )


class ApiError(Exception):
    """An error response: its HTTP status and its ``error`` object."""

    def __init__(self, status: int, message: str, **more: str) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"type": "invalid_request_error", "message": message, **more}


def missing(kind: type, wanted: str, *, param: str = "id") -> ApiError:
    """Return the error for an unknown id: 404 in the path, 400 in a parameter."""
    message = f"No such {_KINDS[kind]}: '{wanted}'"
    return ApiError(
        404 if param == "id" else 400,
        message,
        code="resource_missing",
        param=param,
    )


def missing_parameter(name: str) -> ApiError:
    return ApiError(
        400,
        f"Missing required param: {name}.",
        code="parameter_missing",
        param=name,
    )


_KINDS: Final[Mapping[type, str]] = {
    Price: "price",
    Customer: "customer",
    Subscription: "subscription",
    Item: "subscription item",
    Invoice: "invoice",
    CheckoutSession: "checkout.session",
    PortalSession: "portal session",
    WebhookEndpoint: "webhook endpoint",
    ProviderEvent: "event",
}


class Account:
    """All objects by id, oldest first."""

    def __init__(self, *, clock: SimulatedClock, ids: Ids, api_version: str) -> None:
        self.clock = clock
        self.ids = ids
        self.api_version = api_version
        self.agenda = Schedule[Task]()
        self.tables: dict[type, dict[str, Any]] = {kind: {} for kind in _KINDS}
        self.on_event: Callable[[ProviderEvent], None] = lambda _: None

    @property
    def now(self) -> int:
        return self.clock.now()

    def table(self, kind: type[T]) -> dict[str, T]:
        return self.tables[kind]

    def plan(self, moment: int, action: str, *arguments: str | int) -> None:
        """Schedule an action, which must check whether it still applies: tasks are never
        removed.
        """
        self.agenda.add(moment, Task(moment, action, arguments))

    def find(self, kind: type[T], wanted: str, *, param: str = "id") -> T:
        """Return the object with this id; raises `ApiError` if there is none."""
        thing = self.table(kind).get(wanted)
        if thing is None:
            raise missing(kind, wanted, param=param)
        return thing

    def find_customer(self, customer_id: str, *, param: str = "id") -> Customer:
        """Return a customer; raises `ApiError` if it does not exist or is deleted."""
        customer = self.find(Customer, customer_id, param=param)
        if customer.deleted:
            raise missing(Customer, customer_id, param=param)
        return customer

    def set_card(self, customer_id: str, card: Card) -> Customer:
        """Set whether future charges succeed; this emits no event."""
        return self.change(self.find_customer(customer_id), card=card)

    def add(self, thing: T) -> T:
        """Add an object, or replace the one with its id."""
        self.table(type(thing))[thing.id] = thing
        return thing

    def change(self, before: B, *event_types: str, **fields: object) -> B:
        """Replace fields of an object, and emit events if that changes anything."""
        after = replace(before, **fields)
        if after != before:
            self.add(after)
            for event_type in event_types:
                self.emit(event_type, after, before)
        return after

    def emit(
        self, event_type: str, thing: BillingObject, before: BillingObject | None = None
    ) -> None:
        """Add an event; only updates include ``before``."""
        event = ProviderEvent(
            id=self.ids.new("evt"),
            type=event_type,
            created=self.now,
            object=thing,
            before=before if event_type.endswith(".updated") else None,
            pending_webhooks=sum(
                endpoint.wants(event_type) for endpoint in self.table(WebhookEndpoint).values()
            ),
        )
        self.on_event(self.add(event))

"""Sending a history as badly as a provider may, and worse, and saying what it should have come to."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum, StrEnum, auto
from itertools import groupby, islice, permutations, product
from operator import attrgetter
from typing import Any, Final, NamedTuple

import httpx2
import msgspec

from tenantry.domain.billing.events import BillingEvent, Fact
from tenantry.domain.billing.order import is_decided
from tenantry.domain.billing.state import NO_SUBSCRIPTION, PAST_DUE, RECORD_FIELDS, BillingPolicy, BillingState
from tenantry.domain.billing.timeline import begin
from tenantry.domain.tenants import Tenant
from tenantry.integrations.stripe.decode import decode_event
from tenantry_devkit.local.endpoint import Answer, Endpoint
from tenantry_devkit.local.relay import Pace
from tenantry_devkit.local.service import Entry, ServiceAwayError

SENDERS: Final = 8
"""How many requests are under way at once where the order is to be lost."""
_TOO_OLD: Final = 2 * 86_400
"""Seconds; no service can be set to take signatures of that age."""
_FORGERS_SECRET: Final = "whsec_of_somebody_who_has_no_business_here"  # noqa: S105
_MOST_ORDERS: Final = 1000
_REFUSED: Final = 400
_SERVER_FAULT: Final = 500

Json = dict[str, Any]


class Mischief(StrEnum):
    """What may be done to a history."""

    DUPLICATE = "duplicate"
    """A third of the events is sent twice or three times."""
    REORDER = "reorder"
    """Everything is sent in any order, by several senders at once."""
    DELAY = "delay"
    """A tenth of the events is held back until all others have been sent."""
    STALE = "stale"
    """A fifth is sent once more with a signature of two days ago, as somebody does who has recorded it."""
    BAD_SIGNATURE = "bad-signature"
    """For every fifth a forgery is sent: another secret, a body changed after signing, a made-up or no signature."""


class Part(StrEnum):
    """What a request of the plan is."""

    EVENT = "events"
    DUPLICATE = "duplicates"
    STALE = "stale"
    FORGED = "forged"


class _Forgery(Enum):
    OTHER_SECRET = auto()
    CHANGED_BODY = auto()
    MADE_UP = auto()
    NONE = auto()


class Sending(NamedTuple):
    """One request: a body, what it is, and for a forgery how it is signed and the body that was signed."""

    part: Part
    body: bytes
    event_id: str
    forgery: _Forgery | None = None
    signed: bytes = b""


def plan(events: Sequence[Json], mischief: Collection[Mischief], seed: int) -> list[Sending]:
    """What to send, in this order; the same for the same seed. Every event is in it, properly, at least once."""
    chance = random.Random(f"chaos {seed}")  # noqa: S311  # to be repeated, not to be secret
    twice = _some(events, 1 / 3, chance) if Mischief.DUPLICATE in mischief else ()
    stale = _some(events, 1 / 5, chance) if Mischief.STALE in mischief else ()
    forged = _some(events, 1 / 5, chance) if Mischief.BAD_SIGNATURE in mischief else ()
    # the last one comes late in any case
    late = _some(events[:-1], 1 / 10, chance) if Mischief.DELAY in mischief and len(events) > 1 else ()
    sendings: list[Sending] = []
    for event in events:
        own = Sending(Part.EVENT, msgspec.json.encode(event), event["id"])
        sendings.append(own)
        if own.event_id in twice:
            sendings += [own._replace(part=Part.DUPLICATE)] * chance.choice((1, 2))
        if own.event_id in stale:
            sendings.append(own._replace(part=Part.STALE))
        if own.event_id in forged:
            sendings.append(_forged(event, own.body, chance))
    if Mischief.REORDER in mischief:
        chance.shuffle(sendings)
    sendings.sort(key=lambda sending: sending.event_id in late)
    return sendings


def _some(events: Sequence[Json], share: float, chance: random.Random) -> frozenset[str]:
    """The ids of about so many of the events; of one at least, or a short history would come through unharmed."""
    ids = [event["id"] for event in events if chance.random() < share]
    return frozenset(ids or [chance.choice(events)["id"]])


def _forged(event: Json, body: bytes, chance: random.Random) -> Sending:
    """An event of another id that says something else, such as that everything has been paid."""
    thing = {**event["data"]["object"], "status": "active", "cancel_at_period_end": True}
    forged = {**event, "id": f"{event['id']}_forged", "data": {**event["data"], "object": thing}}
    forgery = chance.choice(list(_Forgery))
    return Sending(Part.FORGED, msgspec.json.encode(forged), forged["id"], forgery, body)


class Answers(msgspec.Struct):
    """What was answered: how often each status to each part, and the first few that should not have been."""

    counts: Counter[tuple[str, int]] = msgspec.field(default_factory=Counter)
    wrong: int = 0
    examples: list[str] = msgspec.field(default_factory=list)

    def count(self, sending: Sending, answer: Answer) -> None:
        """Count an answer, and whether it was the right one."""
        self.counts[sending.part, answer.status] += 1
        is_genuine = sending.part in (Part.EVENT, Part.DUPLICATE)
        if answer.is_good if is_genuine else answer.status == _REFUSED:
            return
        self.wrong += 1
        if len(self.examples) < 3:  # noqa: PLR2004
            self.examples.append(f"{sending.part}: {sending.event_id}: {answer.status} {answer.text[:100]}")


async def send(
    sendings: Iterable[Sending],
    endpoint: Endpoint,
    *,
    senders: int,
    pace: Pace,
    advance: Callable[[int], None] = lambda _: None,
) -> Answers:
    """Carry out a plan; what fails at the service's end is tried again, as the provider would.

    ``advance`` is called with how many requests have been answered since the last call. Raises `ServiceAwayError`.
    """
    answers = Answers()
    waiting = iter(sendings)

    async def work() -> None:
        for sending in waiting:
            answers.count(sending, await _answer(sending, endpoint, pace))
            advance(1)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(senders):
                group.create_task(work())
    except* ServiceAwayError as away:
        raise away.exceptions[0] from None
    return answers


async def _answer(sending: Sending, endpoint: Endpoint, pace: Pace) -> Answer:
    failures = 0
    while True:
        try:
            answer = await endpoint.post(sending.body, _signature(sending, endpoint))
        except httpx2.HTTPError as error:
            failures += 1
            if failures > pace.retries:
                raise ServiceAwayError(f"{endpoint.url} does not answer ({type(error).__name__}).") from None
        else:
            failures += 1
            if answer.status < _SERVER_FAULT or failures > pace.retries:
                return answer
        await asyncio.sleep(pace.after(failures))


def _signature(sending: Sending, endpoint: Endpoint) -> str | None:
    if sending.part is Part.STALE:
        return endpoint.signature(sending.body, seconds_ago=_TOO_OLD)
    match sending.forgery:
        case None:
            return None
        case _Forgery.OTHER_SECRET:
            return endpoint.signature(sending.body, secret=_FORGERS_SECRET)
        case _Forgery.CHANGED_BODY:
            return endpoint.signature(sending.signed)
        case _Forgery.MADE_UP:
            return endpoint.signature(sending.body).partition(",")[0] + f",v1={'0' * 64}"
        case _Forgery.NONE:
            return ""


class Expected(NamedTuple):
    """What a history comes to in the order in which it happened.

    ``undecided`` is in how many of its seconds nothing in the events proves their order, so that arrival decides;
    ``states`` are all that it may come to then, the one of the order in which it happened first.
    """

    states: tuple[BillingState, ...]
    undecided: int


def expected(events: Sequence[Json], before: Tenant | None, policy: BillingPolicy) -> Expected:
    """Fold a history, given in the order in which it happened, onto what a tenant was before."""
    facts = _facts(events, policy)
    states: list[BillingState] = []
    undecided = 0
    for start in _states_of(before):
        timeline = begin(start, facts, policy)
        seconds = [tuple(group) for _, group in groupby(timeline.events, key=attrgetter("created"))]
        open_ones = [
            second
            for second in seconds
            if len(second) > 1 and not is_decided(second, timeline.before_second(second[0].created), policy)
        ]
        undecided = max(undecided, len(open_ones))
        states.append(timeline.state)
        states += (begin(start, order, policy).state for order in _orders(facts, open_ones))
    return Expected(tuple(dict.fromkeys(states)), undecided)


def _orders(facts: Sequence[BillingEvent], seconds: Sequence[Sequence[BillingEvent]]) -> Iterator[list[BillingEvent]]:
    """The same events as they may arrive where nothing proves their order; so many of the ways as are worth a look."""
    ways = product(*(permutations([event.arrival for event in second]) for second in seconds))
    for way in islice(ways, 1, _MOST_ORDERS):
        arrivals = {
            event.id: arrival
            for second, order in zip(seconds, way, strict=True)
            for event, arrival in zip(second, order, strict=True)
        }
        yield [msgspec.structs.replace(fact, arrival=arrivals.get(fact.id, fact.arrival)) for fact in facts]


def _facts(events: Sequence[Json], policy: BillingPolicy) -> list[BillingEvent]:
    """What the events say that the rules need, numbered in their order."""
    return [
        msgspec.structs.replace(
            decode_event(
                msgspec.json.encode(event),
                arrived=0,
                make_up_id=lambda: "",
                reference_links=policy.checkout_reference_links,
            ),
            arrival=number,
        )
        for number, event in enumerate(events)
    ]


def _states_of(tenant: Tenant | None) -> list[BillingState]:
    """The states that may be behind a record: past due does not say what the subscription is beneath it."""
    state = _state_of(tenant)
    if state.subscription_status != PAST_DUE:
        return [state]
    return [msgspec.structs.replace(state, provider_status=beneath) for beneath in (None, "active", "trialing")]


def _state_of(tenant: Tenant | None) -> BillingState:
    """The state behind a record, as far as the record says it."""
    if tenant is None:
        return BillingState()
    status, period_end = tenant.subscription_status, tenant.current_period_end
    return BillingState(
        plan=tenant.plan,
        subscription_status=status,
        current_period_end=int(period_end.timestamp()) if period_end else None,
        cancel_at_period_end=tenant.cancel_at_period_end,
        provider_status=None if status in (NO_SUBSCRIPTION, PAST_DUE) else status,
    )


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a tenant came to what its history gives.

    ``outcomes`` counts what the ledger says of the history's events; ``missing`` of them are not in it, ``forged`` are
    entries that must not be, and ``others`` entries of other events since the history began. They are None where the
    ledger cannot be seen.
    """

    expected: dict[str, Fact]
    actual: dict[str, Fact]
    undecided: int
    outcomes: dict[str, int] | None = None
    missing: int | None = None
    forged: int | None = None
    others: int | None = None

    @property
    def converged(self) -> bool:
        """Whether the state is the one expected, and the ledger, where it can be seen, holds the history and no
        forgery.
        """
        return self.expected == self.actual and not self.missing and not self.forged


def judge(events: Sequence[Json], wanted: Expected, tenant: Tenant, ledger: Sequence[Entry] | None) -> Verdict:
    """Compare what a history should have come to with the tenant's record and ledger."""
    actual = _record(_state_of(tenant))
    records = [_record(state) for state in wanted.states]
    fields: dict[str, Any] = {
        "expected": actual if actual in records else records[0],
        "actual": actual,
        "undecided": wanted.undecided,
    }
    if ledger is not None:
        ours = {event["id"] for event in events}
        beginning = min(event["created"] for event in events)
        others = [entry for entry in ledger if entry.id not in ours and entry.created.timestamp() >= beginning]
        fields |= {
            "outcomes": dict(Counter(entry.outcome for entry in ledger if entry.id in ours).most_common()),
            "missing": len(ours - {entry.id for entry in ledger}),
            "forged": sum(entry.id.endswith("_forged") for entry in others),
            "others": sum(not entry.id.endswith("_forged") for entry in others),
        }
    return Verdict(**fields)


def _record(state: BillingState) -> dict[str, Fact]:
    return {name: getattr(state, name) for name in RECORD_FIELDS}

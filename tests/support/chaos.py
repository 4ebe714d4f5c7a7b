"""Deliver a history with duplicates, in any order and among forgeries, and judge the tenant's state
afterwards.

The judge folds what was sent, in the order in which it happened, with the rules of the domain. So
it finds a lost or invented event, which a fold of the service's own ledger would not. It shares
those rules with the service: a wrong rule is for the laws and the oracles to find.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import httpx2
import msgspec

from tenantry.common.clock import system_clock
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.order import is_decided
from tenantry.domain.billing.state import BillingPolicy, BillingState, fold_key
from tenantry.domain.billing.tenant_record import BillingRecord, record_of
from tenantry.domain.billing.timeline import begin
from tenantry.integrations.stripe.decode import decode_event
from tenantry.integrations.stripe.signature import sign
from tenantry_devkit.local.endpoint import Endpoint, EndpointResponse, RetryPolicy
from tenantry_devkit.local.samples import Json
from tenantry_devkit.simulator.delivery import in_parallel
from tenantry_sdk import BillingEvent as LedgerEntry
from tenantry_sdk import Tenant

SENDERS: Final = 8
"""Concurrent requests, for `ChaosKind.REORDER`."""
_STALE_SECONDS: Final = 2 * 86_400
"""An age of signatures that no service can be set to accept."""
_FORGED_SECRET: Final = "whsec_of_a_forger_0123456789"
_MAX_EXAMPLES: Final = 3
_MOMENTS: Final = ("current_period_end", "cancel_at", "ends_at")
_FIELDS: Final = [
    name
    for name in Tenant.__struct_fields__
    if name in BillingRecord.__struct_fields__ and name != "access"
]
"""The compared fields of the tenant's record. Access depends on the time too."""


class ChaosKind(StrEnum):
    DUPLICATE = "duplicate"
    """Send a third of the events twice or three times."""
    REORDER = "reorder"
    """Send everything in any order, with several senders at once."""
    DELAY = "delay"
    """Hold a tenth of the events back until all others have been sent."""
    STALE = "stale"
    """Send a fifth once more with a signature of two days ago, like an attacker who recorded it."""
    BAD_SIGNATURE = "bad-signature"
    """For a fifth, send a forgery."""


class RequestKind(StrEnum):
    EVENT = "events"
    DUPLICATE = "duplicates"
    STALE = "stale"
    FORGED = "forged"

    @property
    def is_genuine(self) -> bool:
        """Whether the service must accept it."""
        return self in (RequestKind.EVENT, RequestKind.DUPLICATE)


class PlannedRequest(NamedTuple):
    """``forgery`` makes a signature that the service must reject; ``original`` is the body of the
    event as it was.
    """

    kind: RequestKind
    body: bytes
    event_id: str
    forgery: "Callable[[Endpoint, PlannedRequest], str] | None" = None
    original: bytes = b""


_FORGERIES: Final[tuple[Callable[[Endpoint, PlannedRequest], str], ...]] = (
    lambda _endpoint, request: sign(request.body, _FORGED_SECRET, _now()),
    lambda endpoint, request: _signature(endpoint, request.original),  # changed after signing
    lambda endpoint, request: (
        _signature(endpoint, request.body).partition(",")[0] + f",v1={'0' * 64}"
    ),
    lambda _endpoint, _request: "",
)


def _sign_long_ago(endpoint: Endpoint, request: PlannedRequest) -> str:
    return _signature(endpoint, request.body, seconds_ago=_STALE_SECONDS)


def _signature(endpoint: Endpoint, body: bytes, *, seconds_ago: int = 0) -> str:
    return sign(body, endpoint.secret.reveal(), _now() - seconds_ago)


def _now() -> int:
    return int(system_clock().timestamp())


def plan(events: Sequence[Json], kinds: Collection[ChaosKind], seed: int) -> list[PlannedRequest]:
    """Return what to send, in this order, the same for the same seed. It includes every event as it
    is.
    """
    chance = random.Random(f"chaos {seed}")  # noqa: S311  # repeatable
    duplicated = _some(events, 1 / 3, chance) if ChaosKind.DUPLICATE in kinds else ()
    stale = _some(events, 1 / 5, chance) if ChaosKind.STALE in kinds else ()
    forged = _some(events, 1 / 5, chance) if ChaosKind.BAD_SIGNATURE in kinds else ()
    # the last event is late in any case
    late = (
        _some(events[:-1], 1 / 10, chance) if ChaosKind.DELAY in kinds and len(events) > 1 else ()
    )
    requests: list[PlannedRequest] = []
    for event in events:
        own = PlannedRequest(RequestKind.EVENT, msgspec.json.encode(event), event["id"])
        requests.append(own)
        if own.event_id in duplicated:
            requests += [own._replace(kind=RequestKind.DUPLICATE)] * chance.choice((1, 2))
        if own.event_id in stale:
            requests.append(own._replace(kind=RequestKind.STALE, forgery=_sign_long_ago))
        if own.event_id in forged:
            requests.append(_forge(event, own.body, chance))
    if ChaosKind.REORDER in kinds:
        chance.shuffle(requests)
    requests.sort(key=lambda request: request.event_id in late)
    return requests


def _some(events: Sequence[Json], share: float, chance: random.Random) -> frozenset[str]:
    """Return the ids of about that share of the events, and of one at least."""
    ids = [event["id"] for event in events if chance.random() < share]
    return frozenset(ids or [chance.choice(events)["id"]])


def _forge(event: Json, body: bytes, chance: random.Random) -> PlannedRequest:
    """Return an event with another id and content, such as an active subscription."""
    thing = {**event["data"]["object"], "status": "active", "cancel_at_period_end": True}
    forged = {**event, "id": f"{event['id']}_forged", "data": {**event["data"], "object": thing}}
    encoded = msgspec.json.encode(forged)
    return PlannedRequest(
        RequestKind.FORGED, encoded, forged["id"], chance.choice(_FORGERIES), original=body
    )


class ResponseCounts(msgspec.Struct):
    """How often each status answered each kind of request; ``examples`` are the first wrong
    responses.
    """

    counts: Counter[tuple[RequestKind, int]] = msgspec.field(default_factory=Counter)
    wrong: int = 0
    examples: list[str] = msgspec.field(default_factory=list)

    def count(self, request: PlannedRequest, response: EndpointResponse) -> None:
        self.counts[request.kind, response.status or 0] += 1
        if (
            response.is_good
            if request.kind.is_genuine
            else response.status == httpx2.codes.BAD_REQUEST
        ):
            return
        self.wrong += 1
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(
                f"{request.kind}: {request.event_id}: {response.status} {response.text[:100]}"
            )


async def send(
    requests: Iterable[PlannedRequest],
    endpoint: Endpoint,
    *,
    senders: int,
    policy: RetryPolicy,
) -> ResponseCounts:
    """Send a plan's requests, with retries like the provider."""
    responses = ResponseCounts()

    async def deliver(request: PlannedRequest) -> None:
        signature = request.forgery(endpoint, request) if request.forgery else None
        responses.count(request, await _post_with_retries(endpoint, request, signature, policy))

    await in_parallel(requests, deliver, tasks=senders)
    return responses


async def _post_with_retries(
    endpoint: Endpoint, request: PlannedRequest, signature: str | None, policy: RetryPolicy
) -> EndpointResponse:
    failures = 0
    while True:
        response = await endpoint.post(request.body, signature)
        failures += 1
        if response.is_final or failures > policy.retries:
            return response
        await asyncio.sleep(policy.delay(failures))


class ExpectedRecord(NamedTuple):
    """The record that a history leads to.

    ``ambiguous`` is the number of seconds whose order nothing in the events proves.
    """

    record: BillingRecord
    ambiguous: int


def expected(events: Sequence[Json], policy: BillingPolicy) -> ExpectedRecord:
    """Fold the whole history of a tenant, given in the order in which it happened."""
    by_key: dict[str, list[BillingEvent]] = {}
    for number, event in enumerate(events):
        fact = _fact(event, number, policy)
        if (key := fold_key(fact, policy)) is not None:
            by_key.setdefault(key, []).append(fact)
    timelines = [
        begin(BillingState(subscription_id=key or None), facts, policy)
        for key, facts in by_key.items()
    ]
    ambiguous = sum(
        not is_decided(timeline.second(created), timeline.before_second(created), policy)
        for timeline in timelines
        for created in {event.created for event in timeline.events}
    )
    record = record_of([timeline.state for timeline in timelines], policy)
    return ExpectedRecord(record, ambiguous)


def _fact(event: Json, number: int, policy: BillingPolicy) -> BillingEvent:
    links, body = policy.checkout_reference_links, msgspec.json.encode(event)
    fact = decode_event(body, arrived=0, make_up_id=lambda: "", reference_links=links)
    return msgspec.structs.replace(fact, arrival=number)


def _fields(source: BillingRecord | Tenant) -> dict[str, object]:
    """Return the values of `_FIELDS`; moments in seconds since the epoch."""
    values = {name: getattr(source, name) for name in _FIELDS}
    for name in _MOMENTS:
        if isinstance(source, Tenant) and (moment := values[name]):
            values[name] = int(moment.timestamp())
    return values


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a tenant has the state that its history leads to.

    ``outcomes`` counts the outcomes of the history's events in the ledger, and ``missing`` those
    that are not in it. ``forged`` are the forgeries that are.
    """

    expected: dict[str, object]
    actual: dict[str, object]
    outcomes: dict[str, int]
    missing: int
    forged: int

    @property
    def converged(self) -> bool:
        return self.expected == self.actual and not self.missing and not self.forged


def judge(
    events: Sequence[Json],
    wanted: ExpectedRecord,
    tenant: Tenant,
    ledger: Sequence[LedgerEntry],
) -> Verdict:
    """Compare the expected record of a history with the tenant's record and ledger."""
    own = {event["id"] for event in events}
    return Verdict(
        expected=_fields(wanted.record),
        actual=_fields(tenant),
        outcomes=dict(Counter(entry.outcome for entry in ledger if entry.id in own)),
        missing=len(own - {entry.id for entry in ledger}),
        forged=sum(entry.id.endswith("_forged") for entry in ledger),
    )

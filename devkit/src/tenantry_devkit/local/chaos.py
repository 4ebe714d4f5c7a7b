"""Deliver a history with duplicates, in any order and among forgeries, and check the tenant's state
afterwards.
"""

import random
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import Final, NamedTuple

import click
import httpx2
import msgspec
from rich.text import Text

from tenantry.cli.output import (
    FAILED,
    Column,
    CommandError,
    Value,
    counted,
    own_command,
    print_table,
    printable,
    progress,
    shown,
)
from tenantry.common.clock import from_epoch
from tenantry.domain.access import NO_SUBSCRIPTION
from tenantry.domain.billing.events import REQUIRED_TYPES, BillingEvent, SubscriptionDetails
from tenantry.domain.billing.order import is_decided
from tenantry.domain.billing.state import (
    PAST_DUE,
    WHOLE_TENANT,
    BillingPolicy,
    BillingState,
    fold_key,
)
from tenantry.domain.billing.tenant_record import BillingRecord, record_of
from tenantry.domain.billing.timeline import begin
from tenantry.domain.plans import FREE, OVER
from tenantry.domain.tenants import Tenant
from tenantry.integrations.stripe.decode import decode_event
from tenantry_devkit.local.endpoint import Endpoint, EndpointResponse, RetryPolicy
from tenantry_devkit.local.samples import API_VERSIONS, Json
from tenantry_devkit.local.session import (
    STORY,
    TenantView,
    TriggerSession,
    current_second,
    first_second,
)
from tenantry_devkit.local.stories import (
    SHORTEST_HISTORY,
    chosen_story,
    long_history,
    play,
    stage_for,
)
from tenantry_devkit.simulator import render_event
from tenantry_devkit.simulator.delivery import in_parallel
from tenantry_sdk import BillingEvent as LedgerEntry

SENDERS: Final = 8
"""Concurrent requests, for `ChaosKind.REORDER`."""
_STALE_SECONDS: Final = 2 * 86_400
"""An age of signatures that no service can be set to accept."""
_FORGED_SECRET: Final = "whsec_of_a_forger_0123456789"  # noqa: S105
_MAX_EXAMPLES: Final = 3
_EVENTS: Final = 100
_FIELDS: Final = {
    name: label
    for name, label in zip(Tenant.__struct_fields__, Tenant.__struct_encode_fields__, strict=True)
    if name in BillingRecord.__struct_fields__ and name != "access"
}
"""The compared fields of the tenant's record, with their names in the API. Access depends on the
time too.
"""
_MOMENTS: Final = ("current_period_end", "cancel_at", "ends_at")
_STATE_COLUMNS: Final[tuple[Column, ...]] = (
    Column("", itemgetter(0)),
    Column("in their order", lambda row: shown(row[1])),
    Column("the service", lambda row: shown(row[2])),
)


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


_KIND_LABELS: Final = {
    RequestKind.STALE: "signatures of two days ago",
    RequestKind.FORGED: "forgeries",
}


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
    lambda endpoint, request: endpoint.signature(request.body, secret=_FORGED_SECRET),
    lambda endpoint, request: endpoint.signature(request.original),  # changed after signing
    lambda endpoint, request: (
        endpoint.signature(request.body).partition(",")[0] + f",v1={'0' * 64}"
    ),
    lambda _endpoint, _request: "",
)


def _sign_long_ago(endpoint: Endpoint, request: PlannedRequest) -> str:
    return endpoint.signature(request.body, seconds_ago=_STALE_SECONDS)


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

    def in_order(self) -> list[tuple[RequestKind, int, int]]:
        rows = sorted((status, kind, number) for (kind, status), number in self.counts.items())
        return [
            (kind, status, number)
            for wanted in RequestKind
            for status, kind, number in rows
            if kind is wanted
        ]


async def send(
    requests: Iterable[PlannedRequest],
    endpoint: Endpoint,
    *,
    senders: int,
    policy: RetryPolicy,
    advance: Callable[[int], None] = lambda _: None,
) -> ResponseCounts:
    """Send a plan's requests, with retries like the provider. Raises `CommandError` if the endpoint
    does not answer.

    It calls ``advance`` with the number of requests answered since the last call.
    """
    responses = ResponseCounts()

    async def deliver(request: PlannedRequest) -> None:
        signature = request.forgery(endpoint, request) if request.forgery else None
        responses.count(request, await endpoint.deliver(request.body, signature, policy=policy))
        advance(1)

    try:
        await in_parallel(requests, deliver, tasks=senders)
    except* CommandError as errors:
        raise errors.exceptions[0] from None
    return responses


class ExpectedRecords(NamedTuple):
    """The records that a history may lead to: several where the tenant's record does not show the
    whole state before.

    ``ambiguous`` is the number of seconds whose order nothing in the events proves.
    """

    records: tuple[BillingRecord, ...]
    ambiguous: int


def expected(
    events: Sequence[Json], before: Tenant | None, policy: BillingPolicy
) -> ExpectedRecords:
    """Fold a history, given in the order in which it happened, onto a tenant's record, as its
    subscriptions count.
    """
    by_key: dict[str, list[BillingEvent]] = {}
    for number, event in enumerate(events):
        fact = _fact(event, number, policy)
        if (key := fold_key(fact, policy)) is not None:
            by_key.setdefault(key, []).append(fact)
    beginnings = _beginnings(before, list(by_key), policy)
    folds = [
        {
            key: begin(
                states.get(key, BillingState(subscription_id=key or None)),
                by_key.get(key, ()),
                policy,
            )
            for key in {**states, **by_key}
        }
        for states in beginnings
    ]
    ambiguous = sum(
        not is_decided(timeline.second(created), timeline.before_second(created), policy)
        for timeline in folds[0].values()
        for created in {event.created for event in timeline.events}
    )
    given = (
        before.plan
        if before is not None and before.subscription_status == NO_SUBSCRIPTION
        else FREE
    )
    records = [
        record_of([timeline.state for timeline in each.values()], policy, given) for each in folds
    ]
    return ExpectedRecords(tuple(dict.fromkeys(records)), ambiguous)


def _beginnings(
    before: Tenant | None, keys: Sequence[str], policy: BillingPolicy
) -> list[dict[str, BillingState]]:
    """Return the states that the folds may begin with, by key.

    With `SubscriptionRule.EACH` the record before is of the subscription of the history, or of
    another one.
    """
    known = _state_of(before)
    # past due hides the subscription's own status
    hidden = (
        (None, "active", "trialing")
        if known.subscription_status == PAST_DUE
        else (known.provider_status,)
    )
    states = [msgspec.structs.replace(known, provider_status=each) for each in hidden]
    if not policy.is_each:
        return [{WHOLE_TENANT: state} for state in states]
    if known.subscription_status == NO_SUBSCRIPTION and keys:
        return [{}]
    own = [
        {keys[0]: msgspec.structs.replace(state, subscription_id=keys[0])}
        for state in states
        if len(keys) == 1
    ]
    return [{WHOLE_TENANT: states[0]}, *own]


def _fact(event: Json, number: int, policy: BillingPolicy) -> BillingEvent:
    links, body = policy.checkout_reference_links, msgspec.json.encode(event)
    fact = decode_event(body, arrived=0, make_up_id=lambda: "", reference_links=links)
    return msgspec.structs.replace(fact, arrival=number)


def _state_of(tenant: Tenant | None) -> BillingState:
    if tenant is None:
        return BillingState()
    status = tenant.subscription_status
    moments = {name: int(at.timestamp()) for name in _MOMENTS if (at := getattr(tenant, name))}
    return BillingState(
        plan=tenant.plan,
        subscription_status=status,
        current_period_end=moments.get("current_period_end"),
        cancel_at_period_end=tenant.cancel_at_period_end,
        provider_status=None if status in (NO_SUBSCRIPTION, PAST_DUE) else status,
        seats=tenant.seats,
        details=SubscriptionDetails(
            cancel_at=moments.get("cancel_at"),
            ended_at=moments.get("ends_at") if status in OVER else None,
        ),
    )


def _fields(source: BillingRecord | Tenant) -> tuple[Value, ...]:
    """Return the values of `_FIELDS`."""
    values = ((name, getattr(source, name)) for name in _FIELDS)
    return tuple(
        from_epoch(value) if name in _MOMENTS and isinstance(value, int) else value
        for name, value in values
    )


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a tenant has the state that its history leads to.

    ``outcomes`` counts the outcomes of the history's events in the ledger, and ``missing`` those
    that are not in it. ``forged`` and ``others`` are the other entries since the history began.
    None means the ledger cannot be read.
    """

    expected: tuple[Value, ...]
    actual: tuple[Value, ...]
    ambiguous: int
    outcomes: dict[str, int] | None = None
    missing: int | None = None
    forged: int | None = None
    others: int | None = None

    @property
    def converged(self) -> bool:
        return self.expected == self.actual and not self.missing and not self.forged

    def rows(self) -> list[tuple[str, Value, Value]]:
        """Return the name, the expected and the actual value of each field."""
        return list(zip(_FIELDS.values(), self.expected, self.actual, strict=True))


def judge(
    events: Sequence[Json],
    wanted: ExpectedRecords,
    tenant: Tenant,
    ledger: Sequence[LedgerEntry] | None,
) -> Verdict:
    """Compare the expected records of a history with the tenant's record and ledger."""
    actual, records = _fields(tenant), [_fields(record) for record in wanted.records]
    expected_fields = actual if actual in records else records[0]
    verdict = Verdict(expected=expected_fields, actual=actual, ambiguous=wanted.ambiguous)
    if ledger is None:
        return verdict
    own = {event["id"] for event in events}
    beginning = min(event["created"] for event in events)
    others = [
        entry for entry in ledger if entry.id not in own and entry.created.timestamp() >= beginning
    ]
    forged = sum(entry.id.endswith("_forged") for entry in others)
    return msgspec.structs.replace(
        verdict,
        outcomes=dict(Counter(entry.outcome for entry in ledger if entry.id in own).most_common()),
        missing=len(own - {entry.id for entry in ledger}),
        forged=forged,
        others=len(others) - forged,
    )


async def run_chaos(session: TriggerSession) -> int:
    options = session.options
    seed = secrets.randbits(32) if options.seed is None else options.seed
    if options.what is None and options.times is not None and options.times < SHORTEST_HISTORY:
        raise click.BadParameter(
            f"a long history has at least {SHORTEST_HISTORY} events", param_hint="--times"
        )
    kinds = [kind for kind in ChaosKind if kind in options.chaos]
    async with session.tenant_for("chaos") as (tenant_id, before):
        events = await _history(session, tenant_id, before, seed)
        requests = plan(events, kinds, seed)
        if not options.as_json:
            head = f"  {counted(len(events), 'event')} of tenant {tenant_id}, delivered badly"
            session.write(Text.assemble(("chaos", "bold"), head))
            session.write(f"{', '.join(kinds)}; --seed {seed} repeats this run", style="dim")
            session.console.print()
        senders = SENDERS if ChaosKind.REORDER in kinds else 1
        with progress("sending", len(requests)) as bar:
            responses = await send(
                requests,
                session.endpoint,
                senders=senders,
                policy=RetryPolicy(),
                advance=bar.advance,
            )
        after = await session.reader.tenant_view(tenant_id)
        verdict = None
        if after.tenant is not None:
            wanted = expected(events, before.tenant, session.policy)
            verdict = judge(events, wanted, after.tenant, after.ledger)
        if options.as_json:
            run = {"tenantId": tenant_id, "seed": seed, "kinds": kinds, "events": len(events)}
            session.write_json({**run, "requests": len(requests), **_document(responses, verdict)})
        else:
            session.write(f"{counted(len(requests), 'request')}:")
            _show(session, len(events), responses, verdict)
            if verdict is not None:
                session.write(
                    f"The whole ledger: {own_command()} tenants explain {tenant_id}", style="dim"
                )
    return 0 if not responses.wrong and (verdict is None or verdict.converged) else FAILED


async def _history(
    session: TriggerSession, tenant_id: str, view: TenantView, seed: int
) -> list[Json]:
    """Return the events in the order in which they happened, the last one about now."""
    options = session.options
    if options.what is not None and options.what.startswith(STORY):
        story = chosen_story(session)
        stage = stage_for(session, story, tenant_id, view)
        async for _ in play(story, stage):
            pass
        version = API_VERSIONS[options.shape]
        return [render_event(event, version) for event in stage.simulator.events(*REQUIRED_TYPES)]
    number, subject = options.times or _EVENTS, session.subject(tenant_id, view)
    if options.what is not None:
        return [event async for event in session.sample_events(subject, view, number)]
    start = first_second(view, current_second() - number)
    prices = {price: amount for price, amount in session.prices.items() if amount} or session.prices
    is_each = session.policy.is_each
    return await long_history(
        subject, prices, events=number, start=start, seed=seed, shape=options.shape, is_each=is_each
    )


def _document(responses: ResponseCounts, verdict: Verdict | None) -> Json:
    """Return the JSON document's results; those of an unreadable tenant or ledger are null."""
    rows = verdict.rows() if verdict else []
    ledger = {
        name: verdict and getattr(verdict, name)
        for name in ("missing", "forged", "others", "converged")
    }
    return {
        "answers": [
            dict(zip(("part", "status", "number"), row, strict=True))
            for row in responses.in_order()
        ],
        "wrong": responses.wrong,
        "fields": [
            {"field": label, "expected": wanted, "actual": actual} for label, wanted, actual in rows
        ],
        "ambiguous": verdict and verdict.ambiguous,
        "ledger": verdict and verdict.outcomes,
        **ledger,
    }


def _show(
    session: TriggerSession, events: int, responses: ResponseCounts, verdict: Verdict | None
) -> None:
    for kind, status, number in responses.in_order():
        style = "green" if httpx2.codes.is_success(status) is kind.is_genuine else "bold red"
        session.write(
            Text.assemble(f"{_KIND_LABELS.get(kind, kind):27}{number:8,}  ", (str(status), style)),
            2,
        )
    for example in responses.examples:
        session.write(printable(example), 2, style="red")
    if verdict is None:
        session.console.print()
        session.write("The tenant cannot be read, so its state was not checked.", style="yellow")
        return
    if verdict.outcomes is not None:
        session.write("the ledger:")
        wrong = {"missing": verdict.missing or 0, "forged": verdict.forged or 0}
        for what, number in (*verdict.outcomes.items(), *filter(itemgetter(1), wrong.items())):
            session.write(f"{what:27}{number:8,}", 2, style="bold red" if what in wrong else "")
    session.console.print()
    print_table(verdict.rows(), _STATE_COLUMNS)
    session.console.print()
    complaint = _complaint(responses, verdict)
    if verdict.outcomes is None:
        result = (
            "Converged: the state is as expected. Reading the ledger needs the scope billing:read."
        )
    else:
        result = f"Converged: {counted(events, 'event')}, each counted once, in the order in which they happened."
    session.write(complaint or result, style="bold red" if complaint else "bold green")


def _complaint(responses: ResponseCounts, verdict: Verdict) -> str:
    """Return what is wrong; empty if nothing is."""
    has_other_state = verdict.expected != verdict.actual
    complaints = {
        "Not converged: the state differs from the fold of the events.": has_other_state,
        f"Other events in the ledger meanwhile: {verdict.others or 0:,}.": has_other_state
        and verdict.others,
        f"Events that are not in the ledger: {verdict.missing or 0:,}.": verdict.missing,
        "Forged events are in the ledger.": verdict.forged,
        f"{counted(responses.wrong, 'answer')} had a wrong status.": responses.wrong,
    }
    return " ".join(text for text, applies in complaints.items() if applies)

"""Delivers histories to the running service through its webhook, and compares the ends with the
oracle's.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import httpx2
import msgspec

from tenantry.billing.grants import GrantService
from tenantry.billing.ingest import WebhookService
from tenantry.billing.replay import ReplayService, Selection
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.billing.ledger import ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.grants import GrantInput
from tenantry.integrations.stripe.decode import decode_event
from tests.support.app import OPERATOR_TOKEN, make_settings, running_app
from tests.support.billing import add_tenants, rows
from tests.support.billing_oracle import Verdict, judge
from tests.support.billing_oracle_mails import ExpectedMail
from tests.support.billing_oracle_records import ExpectedTenant
from tests.support.catalogs import EXTRA_PROJECTS, PLANS, catalog_file
from tests.support.patience import patient_database
from tests.support.provider_world import Event, History, HistoryTenant
from tests.support.signing import deliver

NOW: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
_DELIVERIES: Final = 20
_AT_ONCE: Final = 60
"""Histories that are delivered over HTTP at the same time, each event after the answer to the one
before.
"""
_TOGETHER: Final = 100
"""Events in one transaction, each of another history."""
_EXPLAINED: Final = "ambiguous_order"
_NOTICES: Final = "trial_ending,payment_recovered,subscription_ended,access_ended"
_LEDGER: Final = "SELECT tenant_id, id, anomalies FROM billing_events WHERE tenant_id = ANY(%s) AND anomalies <> '{}'"
_MAILS: Final = "SELECT tenant_id, type, cause FROM notifications WHERE tenant_id = ANY(%s)"


@dataclass
class Outcome:
    """How a history ended: the anomalies of the service, and what the oracle says otherwise.

    Nothing is compared of a tenant whose ledger says that the order of a second is ambiguous, or of
    the other tenants that the subscription of that second has named.
    """

    history: History
    differences: list[str] = field(default_factory=list)
    anomalies: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_ambiguous(self) -> bool:
        return _is_ambiguous(self.anomalies)

    @property
    def is_silently_wrong(self) -> bool:
        return bool(self.differences)


def _decided(history: History, anomalies: Mapping[str, Mapping[str, Collection[str]]]) -> set[str]:
    """Return the tenants of which the service does not say that their state depends on the order of
    arrival.
    """
    undecided = {tenant.id for tenant in history.tenants if _is_ambiguous(anomalies[tenant.id])}
    ambiguous = {
        event_id
        for found in anomalies.values()
        for event_id, kinds in found.items()
        if _EXPLAINED in kinds
    }
    named: defaultdict[str, set[str]] = defaultdict(set)
    for event in history.events:
        payload = event["data"]["object"]
        if payload["object"] == "subscription":
            named[payload["id"]].add(payload["metadata"].get("orgId"))
    for event in history.events:
        if event["id"] in ambiguous:
            undecided |= named.get(event["data"]["object"]["id"], set())
    return {tenant.id for tenant in history.tenants} - undecided


def _is_ambiguous(anomalies: Mapping[str, Collection[str]]) -> bool:
    return any(_EXPLAINED in found for found in anomalies.values())


class HistoryService:
    """The service, to which whole histories are delivered, each to separate tenants."""

    def __init__(
        self, conninfo: str, client: httpx2.AsyncClient, database: Database, policy: BillingPolicy
    ) -> None:
        self._conninfo = conninfo
        self._client = client
        self._database = database
        self._policy = policy
        self._ingest = WebhookService([database.lane()], policy, Outbox(), lambda: NOW)

    async def close(self) -> None:
        await self._ingest.close()

    async def run(self, histories: Sequence[History], *, over_http: bool = False) -> list[Outcome]:
        """Deliver histories, and compare how they end.

        The events of one history arrive one after the other. Those of several histories share
        transactions, by the service's own batches (`over_http`), or else in batches of `_TOGETHER`.
        """
        await self._create([tenant for history in histories for tenant in history.tenants])
        if over_http:
            gate = asyncio.Semaphore(_AT_ONCE)
            await asyncio.gather(*(self._send_all(history, gate) for history in histories))
        else:
            await self._apply_all(histories)
        ids = [tenant.id for history in histories for tenant in history.tenants]
        records, mails = await self._records(ids), await self._mails(ids)
        anomalies, folded_otherwise = await self._anomalies(ids), await self._folded_otherwise(ids)
        outcomes = []
        for history in histories:
            verdict = judge(history, int(NOW.timestamp()))
            outcome = Outcome(history)
            own: Counter[ExpectedMail] = Counter()
            decided = _decided(history, anomalies)
            for tenant in history.tenants:
                outcome.differences += folded_otherwise.get(tenant.id, [])
                outcome.anomalies |= anomalies[tenant.id]
                own.update(mails[tenant.id])
            for id_ in sorted(decided):
                outcome.differences += record_differences(id_, verdict.tenants[id_], records[id_])
            seconds = {str(event["created"]) for event in history.events}
            outcome.differences += mail_differences(verdict, own, decided, seconds)
            outcomes.append(outcome)
        return outcomes

    async def _create(self, tenants: Sequence[HistoryTenant]) -> None:
        await add_tenants(self._conninfo, {tenant.id: tenant.customer for tenant in tenants})
        grants = GrantService(self._database, self._policy, Outbox(), lambda: NOW)
        for tenant in tenants:
            if tenant.plan != "free":
                wanted = GrantInput("a contract", tenant.plan)
                await grants.put(BY_OPERATOR, tenant.id, "contract", wanted)

    async def _send_all(self, history: History, gate: asyncio.Semaphore) -> None:
        async with gate:
            for position in history.arrivals:
                await self._send(history.events[position])

    async def _send(self, event: Event) -> None:
        """Deliver an event, again where the service is overloaded, as the provider does."""
        for _ in range(_DELIVERIES):
            answer = await deliver(self._client, event, at=int(NOW.timestamp()))
            if answer.status_code != 503:
                assert (answer.status_code, answer.text) == (200, "OK"), (answer.text, event)
                return
        raise AssertionError(f"the event was refused each time: {event}")

    async def _apply_all(self, histories: Sequence[History]) -> None:
        for turn in range(max(len(history.arrivals) for history in histories)):
            events = [
                history.events[history.arrivals[turn]]
                for history in histories
                if turn < len(history.arrivals)
            ]
            for start in range(0, len(events), _TOGETHER):
                received = [_received(event) for event in events[start : start + _TOGETHER]]
                for answer in await self._ingest.apply(received):
                    if isinstance(answer, Exception):
                        raise answer

    async def _records(self, ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """Read records as the API gives them."""
        headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        found: dict[str, dict[str, Any]] = {}
        for tenant_id in ids:
            answer = await self._client.get(
                f"/api/v1/operator/tenants/{tenant_id}", headers=headers
            )
            assert answer.status_code == 200, answer.text
            found[tenant_id] = answer.json()
        return found

    async def _mails(self, ids: Sequence[str]) -> dict[str, list[ExpectedMail]]:
        found: defaultdict[str, list[ExpectedMail]] = defaultdict(list)
        for row in await rows(self._conninfo, _MAILS, list(ids)):
            kind = row["type"].removeprefix("billing.")
            about = row["cause"].split(" ", 2)[-1]
            found[row["tenant_id"]].append(ExpectedMail(kind, row["tenant_id"], about))
        return found

    async def _anomalies(self, ids: Sequence[str]) -> dict[str, dict[str, list[str]]]:
        found: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
        for row in await rows(self._conninfo, _LEDGER, list(ids)):
            found[row["tenant_id"]][row["id"]] = row["anomalies"]
        return found

    async def _folded_otherwise(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """The tenants whose stored state is not what a replay of their whole ledger gives."""
        replay = ReplayService(self._database, self._policy, lambda: NOW)
        chunks = replay.run(Selection(tuple(ids)), dry_run=True)
        checked = [each async for chunk in chunks for each in chunk.checked]
        return {
            each.tenant_id: [
                f"{each.tenant_id}: a replay gives {each.differences}, {each.parked} parked"
            ]
            for each in checked
            if not each.is_right
        }


def _received(event: Event) -> ReceivedEvent:
    body = json.dumps(event).encode()
    decoded = decode_event(
        body, arrived=int(NOW.timestamp()), make_up_id=str, reference_links=False
    )
    return ReceivedEvent(decoded, NOW, body)


@asynccontextmanager
async def running_history_service(conninfo: str, mode: str) -> AsyncIterator[HistoryService]:
    """The service in a mode, on an empty database."""
    database = patient_database(conninfo, pool_size=2)
    await database.open()
    settings = {
        "SUBSCRIPTIONS": mode,
        "TENANTRY_PLANS": catalog_file(PLANS + EXTRA_PROJECTS),
        "OWNER_NOTICES": _NOTICES,
    }
    policy = make_settings(**settings).billing
    async with running_app(conninfo, clock=lambda: NOW, **settings) as client:
        service = HistoryService(conninfo, client, database, policy)
        try:
            yield service
        finally:
            await service.close()
            await database.close()


def record_differences(tenant: str, expected: ExpectedTenant, record: dict[str, Any]) -> list[str]:
    """Return what a record says otherwise than the oracle."""
    fields, access = expected.record, record["access"]
    pairs = {
        "plan": (record["plan"], fields.plan),
        "subscriptionStatus": (record["subscriptionStatus"], fields.subscription_status),
        "currentPeriodEnd": (_epoch(record["currentPeriodEnd"]), fields.current_period_end),
        "cancelAtPeriodEnd": (record["cancelAtPeriodEnd"], fields.cancel_at_period_end),
        "cancelAt": (_epoch(record["cancelAt"]), fields.cancel_at),
        "endsAt": (_epoch(record["endsAt"]), fields.ends_at),
        "seats": (record["seats"], fields.seats),
        "access.state": (access["state"], expected.access.state),
        "access.plan": (access["plan"], expected.access.plan),
        "access.until": (_epoch(access["until"]), expected.access.until),
    }
    found = [
        f"{tenant}: {name} is {ours!r}, not {right!r}"
        for name, (ours, right) in pairs.items()
        if ours != right
    ]
    if not access["reason"].endswith("."):
        found.append(f"{tenant}: access.reason is {access['reason']!r}")
    return found


def mail_differences(
    verdict: Verdict,
    mails: Counter[ExpectedMail],
    decided: Collection[str],
    seconds: Collection[str],
) -> list[str]:
    """Return the mails that are missing, and those that are too many, of the `decided` tenants.

    `seconds` are those of the history's events.

    A mail about access that ended by time is neither: all arrivals come at one moment, so no time
    passes.
    """
    missing = [mail for mail in verdict.mails - mails if mail.tenant in decided]
    surplus = [
        mail
        for mail in mails - verdict.mails
        if mail.tenant in decided and mail not in verdict.optional
    ]
    surplus = [mail for mail in surplus if mail.kind != "access_ended" or mail.about in seconds]
    return [f"missing mail {_shown(mail)}" for mail in missing] + [
        f"wrong mail {_shown(mail)}" for mail in surplus
    ]


def _shown(mail: ExpectedMail) -> str:
    return f"{mail.kind} to {mail.tenant} about {mail.about}"


def _epoch(moment: str | None) -> int | None:
    return None if moment is None else int(datetime.fromisoformat(moment).timestamp())


def described(outcome: Outcome) -> str:
    """Return a history and its end as text: what arrived, in that order, and what is wrong."""
    history = outcome.history
    lines = [
        f"--- {history.mode}: {', '.join(f'{t.id} plan={t.plan} customer={t.customer}' for t in history.tenants)}"
    ]
    for position in history.arrivals:
        event = history.events[position]
        lines.append(f"  {position:>2} {_moment(event['created'])} {event['type']} {_facts(event)}")
    lines += [f"  WRONG {difference}" for difference in outcome.differences]
    lines += [f"  anomaly {event_id}: {found}" for event_id, found in outcome.anomalies.items()]
    return "\n".join(lines)


def _moment(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%m-%d %H:%M:%S")


def _facts(event: dict[str, Any]) -> str:
    payload = event["data"]["object"]
    items = [
        f"{item['price']['id']}x{item.get('quantity')}"
        for item in (payload.get("items") or {}).get("data") or []
    ]
    names = (
        "id",
        "customer",
        "status",
        "metadata",
        "subscription",
        "attempt_count",
        "cancel_at_period_end",
    )
    times = ("trial_end", "cancel_at", "current_period_end", "ended_at")
    facts = {name: payload[name] for name in names if payload.get(name) is not None}
    facts |= {name: _moment(payload[name]) for name in times if payload.get(name) is not None}
    if payload.get("pause_collection"):
        facts["pause"] = payload["pause_collection"]["behavior"]
    if items:
        facts["items"] = items
    parent = payload.get("parent") or {}
    if parent:
        facts["subscription"] = parent["subscription_details"]["subscription"]
    shown = json.dumps(facts).replace('"', "")
    previous = event["data"].get("previous_attributes")
    return shown if previous is None else f"{shown} previous={json.dumps(previous)[:300]}"


def renamed(history: History, name: str) -> History:
    """Return the same history with other ids, so that it can be delivered to the same service
    again.
    """
    prefix = history.tenants[0].id.removeprefix("org_").rsplit("_", 1)[0]
    text = json.dumps([asdict(history)]).replace(f"_{prefix}_", f"_{name}_")
    return msgspec.convert(json.loads(text)[0], History)


def numbered(histories: Iterable[History]) -> list[History]:
    """Return histories with ids that no other one has."""
    return [renamed(history, f"n{number}") for number, history in enumerate(histories)]


async def shrink(service: HistoryService, history: History) -> Outcome:
    """Return the shortest history that is still silently wrong: without each arrival that does not
    matter.
    """
    own = history.tenants[0].id.removeprefix("org_").rsplit("_", 1)[0]
    best = (await service.run([renamed(history, f"s0{own}")]))[0]
    for attempt in range(1, len(history.arrivals)):
        arrivals = best.history.arrivals
        shorter = [
            renamed(
                history.arriving((*arrivals[:at], *arrivals[at + 1 :])), f"s{attempt}x{at}{own}"
            )
            for at in range(len(arrivals))
        ]
        wrong = [outcome for outcome in await service.run(shorter) if outcome.is_silently_wrong]
        if not wrong:
            break
        best = wrong[0]
    return best

"""The application of a batch of events: links, parked events and their later application, and
notifications.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec
import pytest

from tenantry.domain.billing.anomalies import anomalies, rejection
from tenantry.domain.billing.batch import (
    BatchChanges,
    StoredEvents,
    Work,
    needed_locks,
    new_subscriptions,
    replay_needs,
)
from tenantry.domain.billing.batch_application import BatchApplication
from tenantry.domain.billing.events import KNOWN_TYPES, BillingEvent, Outcome
from tenantry.domain.billing.ledger import (
    FIRST,
    BatchContext,
    BillingAccount,
    CustomerLink,
    FoldId,
    KnownTenants,
    LedgerEntry,
    ReceivedEvent,
    ReplayNeed,
)
from tenantry.domain.billing.state import (
    WHOLE_TENANT,
    BillingPolicy,
    BillingState,
    KnownSubscription,
)
from tenantry.domain.billing.timeline import Folded
from tenantry.domain.owner_mails import PaymentFailedData
from tests.support.catalogs import CATALOG
from tests.support.facts import (
    ANY,
    EACH,
    account,
    completed,
    deleted,
    failed,
    observed,
    succeeded,
    updated,
)

NOW = datetime.fromtimestamp(1000, UTC)
HOUR = 3600


WHOLE = ("acme", WHOLE_TENANT)


def context_of(*accounts: BillingAccount, **customers: str) -> BatchContext:
    return BatchContext(
        accounts={account.tenant_id: account for account in accounts},
        known=KnownTenants(customers, {}),
        seen=frozenset(),
        first_arrival=1,
    )


def arrivals(*events: BillingEvent) -> list[ReceivedEvent]:
    return [
        ReceivedEvent(msgspec.structs.replace(event, arrival=number), NOW)
        for number, event in enumerate(events, start=1)
    ]


def received(
    known: BatchContext,
    *events: BillingEvent,
    parked: Sequence[BillingEvent] = (),
    policy: BillingPolicy = ANY,
    now: datetime = NOW,
) -> BatchChanges:
    stored = StoredEvents(waiting=arrivals(*parked))
    work = Work(new=arrivals(*events))
    return BatchApplication(known, policy, now, work, stored=stored).changes()


def unparked(
    *events: BillingEvent,
    known: BatchContext | None = None,
    parked: Sequence[BillingEvent] = (),
    policy: BillingPolicy = ANY,
    now: datetime = NOW,
) -> BatchChanges:
    context = known or context_of(account(), cus_1="acme")
    stored = StoredEvents(waiting=arrivals(*parked))
    work = Work(tenant_id="acme", parked=arrivals(*events))
    return BatchApplication(context, policy, now, work, stored=stored).changes()


def outcomes(entries: Sequence[LedgerEntry]) -> list[tuple[str, str | None]]:
    return [(entry.outcome.value, entry.tenant_id) for entry in entries]


def told(result: BatchChanges) -> list[str]:
    return [str(failure.cause) for failure in result.failed_payments]


def state(result: BatchChanges) -> BillingState:
    [change] = result.changed_accounts
    return change.account.state


@pytest.mark.parametrize(
    "event",
    [
        BillingEvent(id="evt_1", type="charge.captured", created=1),
        updated(org_id=None, customer_id=None),
        deleted(org_id=None, customer_id=None),
        failed(customer_id=None),
        succeeded(customer_id=None),
        completed(org_id=None),
        completed(customer_id=None),
        completed(checkout_mode="payment"),
        completed(checkout_mode="setup"),
        completed(checkout_mode=None),
    ],
)
def test_an_event_that_can_have_no_tenant_is_ignored(event: BillingEvent) -> None:
    result = received(context_of(account(), cus_1="acme"), event)
    assert outcomes(result.entries) == [("ignored", None)]
    assert result.changed_accounts == []
    assert result.links == []


@pytest.mark.parametrize("event_type", sorted(KNOWN_TYPES))
def test_every_known_type_is_handled(event_type: str) -> None:
    event = msgspec.structs.replace(
        updated(customer_id="cus_1", checkout_mode="subscription"), type=event_type
    )
    assert rejection(event, ANY) is None


def test_an_unknown_type_is_ignored() -> None:
    event = msgspec.structs.replace(updated(), type="customer.created")
    assert rejection(event, ANY) == (Outcome.IGNORED, "This type is not handled.")


def test_a_malformed_object_is_invalid() -> None:
    event = updated(problem="status is missing")
    assert rejection(event, ANY) == (Outcome.INVALID, "status is missing")


@pytest.mark.parametrize("event", [updated(), deleted(), completed()])
def test_an_event_of_an_unknown_tenant_is_parked(event: BillingEvent) -> None:
    assert outcomes(received(context_of(), event).entries) == [("parked", None)]


@pytest.mark.parametrize("event", [failed(), succeeded()])
def test_an_invoice_of_an_unknown_customer_is_parked(event: BillingEvent) -> None:
    result = received(context_of(account()), event)
    assert outcomes(result.entries) == [("parked", None)]
    assert told(result) == []


def test_an_invoice_finds_its_tenant_by_customer_alone() -> None:
    result = received(context_of(account(), account("other"), cus_1="other"), failed(org_id="acme"))
    assert outcomes(result.entries) == [("applied", "other")]


@pytest.mark.parametrize("event", [updated, deleted])
def test_a_subscription_event_without_a_name_is_its_customers_tenants(
    event: Callable[..., BillingEvent],
) -> None:
    result = received(
        context_of(account(), account("other"), cus_1="other"),
        event(org_id=None, customer_id="cus_1"),
    )
    assert outcomes(result.entries) == [("applied", "other")]
    assert result.links == []


def test_the_name_in_the_metadata_wins_over_the_customer() -> None:
    result = received(
        context_of(account(), account("other"), cus_1="other"), updated(customer_id="cus_1")
    )
    assert outcomes(result.entries) == [("applied", "acme")]


@pytest.mark.parametrize("event", [updated, deleted])
def test_a_subscription_event_without_a_name_waits_for_its_customer(
    event: Callable[..., BillingEvent],
) -> None:
    nameless = event(org_id=None, customer_id="cus_1")
    result = received(context_of(account()), nameless)
    [entry] = result.entries
    assert (entry.outcome, entry.reason) == (
        Outcome.PARKED,
        "Waits: customer cus_1 is not known yet.",
    )
    assert needed_locks([nameless], context_of(account()), ANY) == {("customer cus_1", False)}


def test_a_link_applies_the_nameless_subscription_events_of_its_batch() -> None:
    result = received(
        context_of(account()),
        updated(org_id=None, customer_id="cus_1", status="trialing"),
        completed(200),
    )
    assert outcomes(result.unparked) == [("applied", "acme")]
    assert state(result).subscription_status == "trialing"


def test_a_subscriptions_invoices_find_the_tenant_of_its_customer() -> None:
    nameless = updated(org_id=None, customer_id="cus_1")
    known = context_of(account(), cus_1="acme")
    assert new_subscriptions([nameless], known, EACH) == {"sub_1": "acme"}
    assert new_subscriptions([nameless], context_of(account()), EACH) == {}


def test_a_known_subscription_takes_no_event_whose_customer_is_unknown() -> None:
    """An invoice follows its subscription; a subscription event without a name follows its customer
    alone.
    """
    waiting = updated(org_id=None, customer_id="cus_2", event_id="evt_2")
    known = context_of(account(), cus_1="acme")
    assert received(known, updated(), parked=[waiting], policy=EACH).unparked == []


def test_a_checkout_links_its_customer() -> None:
    result = received(context_of(account()), completed())
    assert result.links == [CustomerLink("cus_1", "acme", "evt_c")]
    [change] = result.changed_accounts
    changed, visible = change.account, change.is_visible
    assert (changed.customer_id, visible) == ("cus_1", True)


def test_a_checkout_links_a_further_customer_and_the_last_one_shows() -> None:
    result = received(context_of(account(customer_id="cus_0"), cus_0="acme"), completed())
    [change] = result.changed_accounts
    changed = change.account
    assert changed.customer_id == "cus_1"


def test_the_first_link_of_a_customer_is_kept() -> None:
    result = received(context_of(account(), account("other"), cus_1="other"), completed())
    assert result.links == []
    [entry] = result.entries
    assert (entry.outcome, entry.tenant_id) == (Outcome.NO_CHANGE, "acme")
    assert "belongs to another organization" in entry.reason


def test_the_first_link_in_a_batch_is_kept() -> None:
    result = received(
        context_of(account(), account("other")),
        completed(event_id="1"),
        completed(event_id="2", org_id="other"),
    )
    assert result.links == [CustomerLink("cus_1", "acme", "1")]


def test_a_subscription_with_a_foreign_customer_is_applied_and_reported() -> None:
    result = received(
        context_of(account(), account("other"), cus_1="other"), updated(customer_id="cus_1")
    )
    [entry] = result.entries
    assert (entry.outcome, entry.tenant_id) == (Outcome.APPLIED, "acme")
    assert "belongs to another organization" in entry.reason


def test_a_subscription_links_where_neither_side_is_linked() -> None:
    assert received(context_of(account()), updated(customer_id="cus_1")).links == [
        CustomerLink("cus_1", "acme", "evt_u")
    ]


def test_a_subscription_links_nothing_where_the_tenant_is_linked() -> None:
    known = context_of(account(customer_id="cus_0"), cus_0="acme")
    assert received(known, updated(customer_id="cus_1")).links == []


def test_an_end_links_nothing() -> None:
    assert received(context_of(account()), deleted(customer_id="cus_1")).links == []


def test_a_link_counts_at_once() -> None:
    result = received(context_of(account()), completed(), failed())
    assert outcomes(result.entries) == [("applied", "acme"), ("applied", "acme")]
    assert told(result) == ["evt_f"]


def test_a_link_applies_the_events_parked_for_the_customer() -> None:
    result = received(context_of(account()), completed(900), parked=[failed(800)])
    assert outcomes(result.unparked) == [("applied", "acme")]
    assert state(result).subscription_status == "past_due"


def test_a_link_applies_earlier_events_of_the_same_batch() -> None:
    result = received(context_of(account()), failed(800), completed(900))
    assert outcomes(result.entries) == [("parked", None), ("applied", "acme")]
    assert outcomes(result.unparked) == [("applied", "acme")]
    assert state(result).subscription_status == "past_due"


def test_the_ledger_shows_the_state_within_the_batch() -> None:
    result = received(context_of(account()), updated(), completed(200))
    assert [entry.before and entry.before.subscription_status for entry in result.entries] == [
        "none",
        "active",
    ]


def test_parked_events_take_their_place_by_their_order() -> None:
    result = unparked(updated(100), deleted(200))
    assert outcomes(result.unparked) == [("applied", "acme"), ("applied", "acme")]
    assert state(result).subscription_status == "canceled"


def test_parked_events_take_their_place_before_newer_ones() -> None:
    known = context_of(account(state=BillingState(), customer_id="cus_1"), cus_1="acme")
    stored = StoredEvents(
        needs={WHOLE: ReplayNeed(900, late=True)},
        histories={WHOLE: [updated(900, status="trialing")]},
    )
    work = Work(tenant_id="acme", parked=arrivals(failed(100)))
    result = BatchApplication(known, ANY, NOW, work, stored=stored).changes()
    assert outcomes(result.unparked) == [("late", "acme")]
    assert state(result).subscription_status == "trialing"


def test_a_parked_checkout_links_and_applies_the_events_parked_for_its_customer() -> None:
    result = unparked(completed(100), known=context_of(account()), parked=[failed(200)])
    assert outcomes(result.unparked) == [("applied", "acme"), ("applied", "acme")]
    assert result.links == [CustomerLink("cus_1", "acme", "evt_c")]


def test_a_parked_failure_is_mailed_while_the_tenant_is_past_due() -> None:
    assert told(unparked(failed(900))) == ["evt_f"]


@pytest.mark.parametrize("later", [updated(950), succeeded(950), deleted(950)])
def test_a_parked_failure_is_not_mailed_once_the_tenant_is_not_past_due(
    later: BillingEvent,
) -> None:
    assert told(unparked(failed(900), later)) == []


def test_a_parked_failure_is_not_mailed_once_its_invoice_is_paid() -> None:
    other = failed(960, "evt_2", invoice_id="in_2")
    assert told(unparked(failed(900), succeeded(950), other)) == ["evt_2"]


@pytest.mark.parametrize(
    ("age", "expected"), [(3 * HOUR - 1, ["evt_f"]), (3 * HOUR, []), (3 * HOUR + 1, [])]
)
def test_a_parked_failure_sends_a_mail_only_while_recent(age: int, expected: list[str]) -> None:
    policy = BillingPolicy(catalog=CATALOG, parked_mail_hours=3)
    now = datetime.fromtimestamp(900 + age, UTC)
    assert told(unparked(failed(900), policy=policy, now=now)) == expected


def test_an_old_failure_that_was_not_parked_is_mailed() -> None:
    now = datetime.fromtimestamp(10**9, UTC)
    known = context_of(account(), cus_1="acme")
    assert told(received(known, failed(1), now=now)) == ["evt_f"]


def test_an_ended_tenant_gets_no_mail() -> None:
    gone = context_of(account(deleted=True), cus_1="acme")
    assert told(received(gone, failed())) == []
    assert told(unparked(failed(900), known=gone)) == []


def test_the_mail_of_a_failure_names_event_and_invoice() -> None:
    [failure] = received(context_of(account(), cus_1="acme"), failed()).failed_payments
    assert (failure.type, failure.tenant_id) == ("billing.payment_failed", "acme")
    assert failure.cause == "evt_f"
    assert failure.data == PaymentFailedData("https://pay.example/in_1")


def test_an_account_whose_record_is_the_same_is_not_visibly_changed() -> None:
    [change] = received(context_of(account(), cus_1="acme"), updated()).changed_accounts
    known = account(customer_id="cus_1", state=change.account.state)
    [change] = received(
        context_of(known, cus_1="acme"), updated(200, customer_id="cus_1")
    ).changed_accounts
    assert (change.account.tip_created, change.is_visible) == (200, False)


@pytest.mark.parametrize(
    ("event", "kinds"),
    [
        (updated(), ()),
        (updated(price_id=None), ("missing_price",)),
        (updated(price_id="price_other"), ("unknown_price",)),
        (updated(org_id=None), ("missing_org_id",)),
        (deleted(org_id=None), ("missing_org_id",)),
        (updated(org_id=None, customer_id="cus_1"), ()),
        (deleted(org_id=None, customer_id="cus_1"), ()),
        (updated(org_id=None, customer_id="cus_1", price_id="price_other"), ("unknown_price",)),
        (deleted(price_id=None), ()),
        (completed(org_id=None), ("missing_org_id",)),
        (completed(org_id=None, checkout_mode="payment"), ()),
        (failed(problem="x"), ("unusable_object",)),
        (failed(livemode=True), ()),
        (failed(livemode=False), ("wrong_livemode",)),
        (updated(price_id="price_other", livemode=False), ("unknown_price", "wrong_livemode")),
    ],
)
def test_anomalies(event: BillingEvent, kinds: tuple[str, ...]) -> None:
    assert (
        anomalies(ReceivedEvent(event, NOW), msgspec.structs.replace(ANY, livemode=True)) == kinds
    )


def test_without_a_known_mode_no_mode_is_wrong() -> None:
    assert anomalies(ReceivedEvent(failed(livemode=False), NOW), ANY) == ()


LISTED = msgspec.structs.replace(ANY, accounts=frozenset({"acct_1"}))
LIVE_ONLY = msgspec.structs.replace(ANY, livemode=True, ignores_other_mode=True)


@pytest.mark.parametrize("event", [updated, failed, completed, deleted])
def test_an_event_of_a_connected_account_is_ignored(event: Callable[..., BillingEvent]) -> None:
    known = context_of(account(), cus_1="acme")
    result = received(known, event(account="acct_2"), policy=LISTED)
    [entry] = result.entries
    assert (entry.outcome, entry.tenant_id) == (Outcome.IGNORED, None)
    assert entry.reason == "Ignored: connected account acct_2 is not in PROVIDER_ACCOUNTS."
    assert entry.anomalies == ("connected_account",)
    assert (result.changed_accounts, result.links) == ([], [])


def test_an_event_of_a_listed_account_counts() -> None:
    result = received(context_of(account()), updated(account="acct_1"), policy=LISTED)
    assert outcomes(result.entries) == [("applied", "acme")]


def test_an_event_of_the_other_mode_is_ignored_if_configured() -> None:
    result = received(context_of(account()), updated(livemode=False), policy=LIVE_ONLY)
    [entry] = result.entries
    assert (entry.outcome, entry.anomalies) == (Outcome.IGNORED, ("ignored_livemode",))
    assert entry.reason == "Ignored: test mode, and PROVIDER_LIVEMODE is live."


@pytest.mark.parametrize("livemode", [True, None])
def test_an_event_of_the_right_mode_or_of_none_counts(livemode: bool | None) -> None:
    result = received(context_of(account()), updated(livemode=livemode), policy=LIVE_ONLY)
    assert outcomes(result.entries) == [("applied", "acme")]


def test_a_thin_event_is_ignored_whatever_its_type() -> None:
    result = received(context_of(account()), updated(is_thin=True))
    assert outcomes(result.entries) == [("ignored", None)]
    assert result.entries[0].reason.startswith("Ignored: a thin (v2) event has no object.")


@pytest.mark.parametrize(("ahead", "found"), [(HOUR, ()), (HOUR + 1, ("future_dated",))])
def test_an_event_dated_more_than_an_hour_ahead_is_an_anomaly(
    ahead: int, found: tuple[str, ...]
) -> None:
    result = received(context_of(account()), updated(1000 + ahead))
    assert result.entries[0].anomalies == found
    assert outcomes(result.entries) == [("applied", "acme")]


def test_history_is_needed_only_for_events_that_are_not_newer() -> None:
    known = context_of(account(tip_created=100), account("fresh"))
    events = [
        ("acme", updated(101)),
        ("fresh", updated(1)),
        (None, failed(1)),
        ("acme", completed(1)),
        ("gone", updated(1)),
    ]
    assert replay_needs(known, events, ANY) == {}


def test_an_event_of_the_newest_second_needs_that_second() -> None:
    known = context_of(account(tip_created=100))
    assert replay_needs(known, [("acme", updated(100))], ANY) == {
        WHOLE: ReplayNeed(100, late=False)
    }


def test_an_account_of_the_previous_release_needs_its_whole_history() -> None:
    known = context_of(account(tip_created=100, is_whole=False))
    assert replay_needs(known, [("acme", updated(101))], ANY) == {
        ("acme", None): ReplayNeed(FIRST, late=True)
    }


def test_an_account_that_is_folded_again_keeps_the_moves_of_its_subscriptions() -> None:
    damaged = account(folds={"sub_1": Folded(BillingState(), moved_at=150)}, is_whole=False)
    whole: FoldId = ("acme", None)
    stored = StoredEvents({whole: ReplayNeed(FIRST, late=True)}, {whole: [updated(100)]})
    work = Work(new=arrivals(deleted(200, subscription_id="sub_2")))
    changes = BatchApplication(context_of(damaged), EACH, NOW, work, stored=stored).changes()
    assert changes.accounts["acme"].is_whole
    assert changes.accounts["acme"].moved_at == {"sub_1": 150}


def test_of_events_of_several_seconds_the_oldest_decides() -> None:
    known = context_of(account(tip_created=100))
    assert replay_needs(
        known, [("acme", updated(100)), ("acme", updated(99)), ("acme", updated(200))], ANY
    ) == {WHOLE: ReplayNeed(99, late=True)}


def test_of_several_late_events_the_oldest_decides_where_the_history_begins() -> None:
    known = context_of(account(tip_created=100))
    assert replay_needs(
        known, [("acme", updated(99)), ("acme", updated(50)), ("acme", updated(70))], ANY
    ) == {WHOLE: ReplayNeed(50, late=True)}


ONE_SUBSCRIPTION = BillingState(subscription_id="sub_1")
SEVERAL = BillingState(subscription_id="sub_1", others=(KnownSubscription("sub_2"),))


def test_late_events_of_the_one_subscription_need_no_history_after_the_next_full_state() -> None:
    known = context_of(account(state=ONE_SUBSCRIPTION, tip_created=100))
    late = [
        ("acme", updated(50)),
        ("acme", succeeded(70, subscription_id="sub_1")),
        ("acme", updated(60)),
    ]
    assert replay_needs(known, late, ANY) == {WHOLE: ReplayNeed(50, late=True, until=70)}


@pytest.mark.parametrize(
    "event",
    [
        failed(60, subscription_id="sub_1"),  # any later event may settle the invoice
        deleted(60),
        updated(60, subscription_id="sub_2"),
        succeeded(60),  # of no subscription
        updated(100),
        updated(101),
    ],
)
def test_with_another_event_they_need_the_whole_history_after_them(event: BillingEvent) -> None:
    known = context_of(account(state=ONE_SUBSCRIPTION, tip_created=100))
    for events in ([updated(50), event], [event, updated(50)]):
        assert replay_needs(known, [("acme", each) for each in events], ANY) == {
            WHOLE: ReplayNeed(50, late=True)
        }


def test_a_late_event_of_several_subscriptions_needs_the_whole_history() -> None:
    known = context_of(account(state=SEVERAL, tip_created=100))
    assert replay_needs(known, [("acme", updated(50))], ANY) == {
        WHOLE: ReplayNeed(FIRST, late=True)
    }


def test_a_late_event_of_a_subscription_that_its_tenant_has_lost_in_the_same_batch_is_applied() -> (
    None
):
    known = context_of(account())
    needs: dict[FoldId, ReplayNeed] = {("acme", "sub_1"): ReplayNeed(50, late=True, until=50)}
    work = Work(new=arrivals(updated(50)))
    application = BatchApplication(known, EACH, NOW, work, stored=StoredEvents(needs))
    assert outcomes(application.entries) == [("applied", "acme")]


def test_a_snapshot_needs_the_newest_second_to_replace_another() -> None:
    known = context_of(account(tip_created=100))
    assert replay_needs(known, [("acme", observed(200))], ANY) == {
        WHOLE: ReplayNeed(100, late=False)
    }


def test_locked_names_are_unknown_tenants_unknown_customers_and_possible_links() -> None:
    known = context_of(account(), account("linked", customer_id="cus_2"), cus_2="linked")
    events = [
        updated(org_id="missing", customer_id="cus_9"),
        failed(customer_id="cus_3"),
        failed(customer_id="cus_2"),
        completed(customer_id="cus_4"),
        completed(customer_id="cus_2"),
        completed(org_id="missing2", customer_id="cus_9"),
        updated(customer_id="cus_5"),
        updated(org_id="linked", customer_id="cus_6"),
        deleted(org_id="linked", customer_id="cus_7"),
    ]
    parks, links = (
        {"tenant missing", "tenant missing2", "customer cus_3"},
        {"customer cus_4", "customer cus_5"},
    )
    claims = links | {"subscription sub_1"}  # an invoice without a customer may wait for it
    assert needed_locks(events, known, ANY) == {(name, name in claims) for name in parks | claims}


def test_ordinary_events_need_no_locks_of_names() -> None:
    known = context_of(
        account(state=BillingState(subscription_id="sub_1"), customer_id="cus_1"), cus_1="acme"
    )
    assert not needed_locks(
        [updated(customer_id="cus_1"), failed(), succeeded(), completed(), deleted()], known, ANY
    )

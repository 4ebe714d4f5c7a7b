"""Named histories of tenants with several subscriptions, each to be delivered in every order."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import (
    BillingEvent,
    PreviousFact,
    SubscriptionDetails,
    SubscriptionItem,
)
from tenantry.domain.plans import Catalog, parse_catalog
from tests.support.catalogs import EXTRA_PROJECTS, PLANS
from tests.support.ledger import CUSTOMER, TENANT
from tests.support.subscription_oracle import Rules

START: Final = 1000
HOUR: Final = 3600
PERIOD: Final = 30_000

_PLANS: Final = f"""{PLANS}{EXTRA_PROJECTS}
[[addons]]
id = "extra_members"
name = "Extra members"
stripe_price_id = "price_members"
"""
CATALOG: Final = parse_catalog(_PLANS)
RANKED: Final = parse_catalog(
    _PLANS.replace('id = "pro"', 'id = "pro"\nrank = 7').replace(
        'id = "business"', 'id = "business"\nrank = 7'
    )
)
"""Two plans of one rank."""
TURNED: Final = parse_catalog(
    _PLANS.replace('id = "free"', 'id = "free"\nrank = 9').replace(
        'id = "pro"', 'id = "pro"\nrank = 5'
    )
)
"""Plans of lower and lower rank."""
STRICT: Final = parse_catalog(
    f'{_PLANS}[access]\npast_due = "none"\ntrialing = "grace"\npaused = "full"\n'
)
LENIENT: Final = parse_catalog(
    f'{_PLANS}[access]\npast_due = "full"\nunpaid = "grace"\nincomplete = "full"\n'
)
SHARED_GRACE: Final = parse_catalog(
    f'{_PLANS}[access]\nunpaid = "grace"\nincomplete = "grace"\nactive = "grace"\n'
)
CATALOGS: Final[dict[str, Catalog]] = {
    "plain": CATALOG,
    "ranked": RANKED,
    "turned": TURNED,
    "strict": STRICT,
    "lenient": LENIENT,
    "grace": SHARED_GRACE,
}

_DEFAULT_FACTS: Final[dict[str, Any]] = {
    "status": "incomplete",
    "items": (("price_pro", 1),),
    "period_end": START + PERIOD,
    "cancels": False,
    "cancel_at": None,
    "pause": None,
    "ended_at": None,
}


class Script:
    """Writes what happens to a tenant's subscriptions, event by event; time passes only by
    `later`.
    """

    def __init__(self) -> None:
        self.now = START
        self.facts: dict[str, dict[str, Any]] = {}
        self._began: dict[str, int] = {}
        self.events: list[BillingEvent] = []

    def later(self, seconds: int = 10) -> None:
        """Let time pass."""
        self.now += seconds

    def begins(self, name: str, *, told: bool = False, **facts: Any) -> None:
        """A subscription begins; ``told`` by `customer.subscription.created`."""
        self.facts[name] = _DEFAULT_FACTS | facts
        self._began[name] = self.now
        if told:
            self._tell(ev.SUBSCRIPTION_CREATED, name, None)

    def changes(self, name: str, event_type: str = ev.SUBSCRIPTION_UPDATED, **facts: Any) -> None:
        """A subscription changes; `updated` says what it replaced."""
        before = self._fields(name)
        self.facts[name] |= facts
        after = self._fields(name)
        replaced = {fact: value for fact, value in before.items() if value != after[fact]}
        self._tell(event_type, name, replaced if event_type == ev.SUBSCRIPTION_UPDATED else None)

    def appears(self, name: str, status: str = "active", **facts: Any) -> None:
        """A subscription begins, and `updated` gives it its first status."""
        self.begins(name, **facts)
        self.changes(name, status=status)

    def ends(self, name: str, *, ended_at: int | None = None) -> None:
        """A subscription ends, now unless ``ended_at`` says when."""
        self.facts[name] |= {
            "status": "canceled",
            "ended_at": self.now if ended_at is None else ended_at,
        }
        self._tell(ev.SUBSCRIPTION_DELETED, name, None)

    def observed(self, name: str, **facts: Any) -> None:
        """The provider answers with the subscription."""
        self.facts[name] |= facts
        self._tell(ev.SNAPSHOT, name, None)

    def fails(self, invoice: str, name: str | None = None) -> None:
        """A payment of an invoice fails, which names a subscription or none."""
        self._bill(ev.PAYMENT_FAILED, invoice, name)

    def pays(
        self, invoice: str, name: str | None = None, event_type: str = ev.PAYMENT_SUCCEEDED
    ) -> None:
        """An invoice is paid."""
        self._bill(event_type, invoice, name)

    def gives_up(
        self, invoice: str, name: str | None = None, event_type: str = ev.INVOICE_VOIDED
    ) -> None:
        """An invoice is voided, or marked as uncollectible."""
        self._bill(event_type, invoice, name)

    def _tell(self, event_type: str, name: str, previous: dict[str, PreviousFact] | None) -> None:
        fields = self._fields(name)
        detailed = {fact: fields.pop(fact) for fact in ev.DETAILED_FACTS if fact in fields}
        self.events.append(
            BillingEvent(
                id=self._next_id(),
                type=event_type,
                created=self.now,
                org_id=TENANT,
                customer_id=CUSTOMER,
                subscription_id=name,
                subscription_created=self._began[name],
                previous=previous,
                details=SubscriptionDetails(**detailed, ended_at=self.facts[name]["ended_at"]),
                **fields,
            )
        )

    def _fields(self, name: str) -> dict[str, Any]:
        """What an event of the subscription tells, and what an update says it replaced."""
        facts = self.facts[name]
        items = tuple(SubscriptionItem(price, quantity) for price, quantity in facts["items"])
        is_simple = len(items) == 1 and items[0].quantity == 1
        return {
            "status": facts["status"],
            "price_id": items[0].price_id if items else None,
            "current_period_end": facts["period_end"],
            "cancel_at_period_end": facts["cancels"],
            "items": () if is_simple else items,
            "cancel_at": facts["cancel_at"],
            "pause": facts["pause"],
        }

    def _bill(self, event_type: str, invoice: str, name: str | None) -> None:
        status = {
            ev.PAYMENT_FAILED: "open",
            ev.INVOICE_VOIDED: "void",
            ev.INVOICE_UNCOLLECTIBLE: "uncollectible",
        }
        self.events.append(
            BillingEvent(
                id=self._next_id(),
                type=event_type,
                created=self.now,
                customer_id=CUSTOMER,
                subscription_id=name,
                invoice_id=invoice,
                status=status.get(event_type, "paid"),
            )
        )

    def _next_id(self) -> str:
        return f"evt_{len(self.events):02}"


class NamedHistory(NamedTuple):
    """A history to be delivered in every order."""

    write: Callable[[Script], None]
    catalog: Catalog = CATALOG

    @property
    def name(self) -> str:
        """What to call it."""
        catalog = next(name for name, catalog in CATALOGS.items() if catalog is self.catalog)
        more = [catalog] * (self.catalog is not CATALOG)
        return "-".join([self.write.__name__, *more])

    @property
    def rules(self) -> Rules:
        """How the service is set up."""
        return Rules(self.catalog)

    @property
    def events(self) -> tuple[BillingEvent, ...]:
        """What happened, in order."""
        script = Script()
        self.write(script)
        return tuple(script.events)


# The six histories of an upgrade and a downgrade.


def upgrade_by_a_second_subscription(script: Script) -> None:
    """The end of the old subscription comes after the last change of the new one."""
    script.appears("sub_1", items=(("price_pro", 1),))
    script.later()
    script.appears("sub_2", items=(("price_business", 3),), period_end=START + 2 * PERIOD)
    script.pays("in_2", "sub_2")
    script.later()
    script.changes("sub_2", items=(("price_business", 4),))
    script.later()
    script.changes("sub_1", cancels=True)
    script.later()
    script.ends("sub_1")


def upgrade_by_a_plan_change(script: Script) -> None:
    """The first subscription ended long ago; the second one changes its plan."""
    script.appears("sub_1", items=(("price_business", 1),))
    script.later()
    script.ends("sub_1", ended_at=START + 7)
    script.later()
    script.appears("sub_2", items=(("price_pro", 1),))
    script.later()
    script.changes("sub_2", items=(("price_business", 1),))
    script.changes("sub_2", period_end=START + 2 * PERIOD)
    script.pays("in_2", "sub_2")


def upgrade_with_immediate_cancel_of_the_old(script: Script) -> None:
    """The new subscription begins in the second in which the old one ends; its last invoice fails
    later.
    """
    script.appears("sub_1", items=(("price_pro", 1),))
    script.later()
    script.appears("sub_2", items=(("price_business", 1),))
    script.changes("sub_1", cancels=True)
    script.ends("sub_1")
    script.later()
    script.fails("in_final", "sub_1")
    script.later()
    script.changes("sub_2", period_end=START + 2 * PERIOD)


def upgrade_with_the_old_canceled_at_period_end(script: Script) -> None:
    """The old subscription stays active beside the new one until its period ends."""
    script.appears("sub_1", items=(("price_pro", 1),))
    script.later()
    script.appears("sub_2", items=(("price_business", 1),), period_end=START + 2 * PERIOD)
    script.changes("sub_1", cancels=True, cancel_at=START + PERIOD)
    script.later(PERIOD)
    script.pays("in_2", "sub_2")
    script.ends("sub_1", ended_at=START + PERIOD)


def downgrade_by_a_second_subscription(script: Script) -> None:
    """The higher plan counts until it ends."""
    script.appears("sub_1", items=(("price_business", 1),))
    script.later()
    script.changes("sub_1", cancels=True)
    script.later()
    script.appears("sub_2", items=(("price_pro", 1),), period_end=START + 2 * PERIOD)
    script.later(PERIOD)
    script.ends("sub_1")
    script.changes("sub_2", period_end=START + 3 * PERIOD)
    script.pays("in_2", "sub_2")


def first_payment_of_the_new_fails(script: Script) -> None:
    """The customer never pays the upgrade; the old subscription goes on."""
    script.appears("sub_1", items=(("price_pro", 1),))
    script.later()
    script.begins("sub_2", items=(("price_business", 1),))
    script.fails("in_2", "sub_2")
    script.later()
    script.changes("sub_2", cancels=True)
    script.later(HOUR)
    script.changes("sub_2", status="incomplete_expired")
    script.later()
    script.fails("in_2", "sub_2")
    script.later()
    script.changes("sub_1", period_end=START + 2 * PERIOD)


UPGRADES: Final = tuple(
    map(
        NamedHistory,
        (
            upgrade_by_a_second_subscription,
            upgrade_by_a_plan_change,
            upgrade_with_immediate_cancel_of_the_old,
            upgrade_with_the_old_canceled_at_period_end,
            downgrade_by_a_second_subscription,
            first_payment_of_the_new_fails,
        ),
    )
)


def two_plans_at_once(script: Script) -> None:
    script.appears("sub_1", items=(("price_business", 2),))
    script.appears("sub_2", items=(("price_pro", 5),))
    script.later()
    script.changes("sub_1", items=(("price_pro", 2),))
    script.changes("sub_2", period_end=START + 2 * PERIOD)
    script.later()
    script.changes("sub_1", period_end=START + 3 * PERIOD)
    script.later()
    script.fails("in_1", "sub_1")
    script.pays("in_1", "sub_1")


def recovery_beside_an_active_one(script: Script) -> None:
    """The higher plan is past due, unpaid, and paid after all."""
    script.appears("sub_1", items=(("price_business", 1),))
    script.later()
    script.appears("sub_2", items=(("price_pro", 1),))
    script.later()
    script.fails("in_1", "sub_1")
    script.changes("sub_1", status="past_due")
    script.later()
    script.fails("in_1", "sub_1")
    script.later()
    script.pays("in_1", "sub_1")
    script.changes("sub_1", status="active")


def past_due_for_ever_beside_a_lower_plan(script: Script) -> None:
    """Both are past due, since different moments; the grace of the lower plan is longer."""
    script.appears("sub_1", items=(("price_business", 1),))
    script.appears("sub_2", items=(("price_pro", 2),))
    script.later()
    script.fails("in_1", "sub_1")
    script.later(HOUR)
    script.changes("sub_1", status="past_due")
    script.later(HOUR)
    script.fails("in_2", "sub_2")
    script.later(HOUR)
    script.changes("sub_1", status="unpaid")
    script.later()
    script.changes("sub_1", status="past_due")


def old_changes_after_the_new(script: Script) -> None:
    script.appears("sub_1", items=(("price_pro", 1),))
    script.later()
    script.appears("sub_2", items=(("price_pro_yearly", 2),), period_end=START + 12 * PERIOD)
    script.later()
    script.changes("sub_1", period_end=START + 2 * PERIOD)
    script.changes("sub_1", cancels=True)
    script.changes("sub_1", cancels=False)
    script.later()
    script.changes("sub_1", items=(("price_pro", 9),))
    script.later()
    script.fails("in_1")


def unpaid_beside_an_ended_one(script: Script) -> None:
    script.appears("sub_1", items=(("price_pro", 1),))
    script.later()
    script.ends("sub_1")
    script.later()
    script.appears("sub_2", status="past_due", items=(("price_business", 2),))
    script.later(HOUR)
    script.changes("sub_2", status="unpaid")
    script.later()
    script.begins("sub_3", items=(("price_pro", 1),))
    script.changes("sub_3", status="incomplete_expired")
    script.later()
    script.pays("in_2", "sub_2")


def paused_and_resumed(script: Script) -> None:
    script.begins("sub_1", told=True, status="trialing", items=(("price_business", 1),))
    script.appears("sub_2", items=(("price_pro", 1),))
    script.later()
    script.changes("sub_1", ev.SUBSCRIPTION_PAUSED, status="paused")
    script.later()
    script.changes("sub_1", ev.SUBSCRIPTION_RESUMED, status="active")
    script.later()
    script.changes("sub_2", ev.SUBSCRIPTION_PAUSED, status="paused")
    script.later()
    script.fails("in_2", "sub_2")


def void_pause_beside_grace(script: Script) -> None:
    """Full access until the period of one ends, then the grace of the other, then none."""
    script.appears("sub_1", items=(("price_pro", 1), ("price_projects", 2)))
    script.later()
    script.appears("sub_2", items=(("price_business", 1), ("price_members", 1)))
    script.later()
    script.changes("sub_1", pause="void")
    script.later()
    script.fails("in_2", "sub_2")
    script.later()
    script.changes("sub_1", period_end=START + 2 * PERIOD)
    script.later()
    script.appears("sub_3", status="unpaid", items=(("price_members", 5),))


def flexible_cancellation(script: Script) -> None:
    """``cancel_at`` moves, and does not follow the period."""
    script.appears("sub_1", items=(("price_pro", 3),))
    script.later()
    script.changes("sub_1", cancel_at=START + 2 * HOUR)
    script.later()
    script.changes("sub_1", cancel_at=START + 3 * HOUR, cancels=True)
    script.later()
    script.appears("sub_2", status="trialing", items=(("price_free", 1),), cancel_at=START + HOUR)
    script.later()
    script.changes("sub_2", cancel_at=None)
    script.later(3 * HOUR)
    script.changes("sub_1", cancel_at=None)


def both_flexible_and_over(script: Script) -> None:
    script.appears("sub_1", items=(("price_pro", 3),), cancel_at=START + HOUR)
    script.later()
    script.changes("sub_1", cancels=True)
    script.later()
    script.appears("sub_2", items=(("price_business", 3),), cancel_at=START + HOUR)
    script.later(HOUR)
    script.ends("sub_1")
    script.later()
    script.ends("sub_2", ended_at=START + HOUR)
    script.later()
    script.fails("in_1", "sub_1")


def invoices_with_and_without_a_subscription(script: Script) -> None:
    script.appears("sub_1", items=(("price_pro", 1),))
    script.appears("sub_2", items=(("price_business", 1),))
    script.later()
    script.fails("in_0")
    script.later()
    script.fails("in_2", "sub_2")
    script.later()
    script.pays("in_0")
    script.later()
    script.fails("in_3", "sub_3")
    script.later()
    script.pays("in_2", "sub_2")


def addon_beside_a_plan(script: Script) -> None:
    """An add-on and a plan in separate subscriptions, and one in which the add-on stands first."""
    script.appears("sub_1", items=(("price_projects", 3),))
    script.later()
    script.appears("sub_2", items=(("price_members", 1), ("price_pro", 4)))
    script.later()
    script.changes("sub_1", items=(("price_projects", 4), ("price_unknown", 1)))
    script.later()
    script.changes(
        "sub_2",
        items=(
            ("price_members", 1),
            ("price_pro", 4),
            ("price_business", 5),
            ("price_projects", 1),
        ),
    )
    script.later()
    script.changes("sub_1", status="past_due")
    script.later()
    script.changes("sub_2", status="past_due")


def addon_that_outlives_the_plan(script: Script) -> None:
    script.appears("sub_1", items=(("price_projects", 3),))
    script.appears("sub_2", items=(("price_business", 1),))
    script.later()
    script.fails("in_2", "sub_2")
    script.later()
    script.changes("sub_2", status="past_due")
    script.later()
    script.changes("sub_2", status="unpaid")
    script.ends("sub_2")
    script.later()
    script.changes("sub_1", cancels=True)


def created_with_updated(script: Script) -> None:
    """`created` and two changes in one second, of two subscriptions at once."""
    script.begins("sub_1", told=True, items=(("price_pro", 1),))
    script.begins("sub_2", told=True, items=(("price_business", 1),))
    script.changes("sub_1", status="active", items=(("price_pro", 2),))
    script.changes("sub_2", status="active")
    script.changes("sub_2", status="past_due")
    script.later()
    script.pays("in_2", "sub_2", ev.INVOICE_PAID)
    script.pays("in_2", "sub_2")


def deleted_with_invoices(script: Script) -> None:
    """Invoice events of the very second of the end, and after it."""
    script.appears("sub_1", items=(("price_business", 1),))
    script.appears("sub_2", items=(("price_pro", 1),))
    script.later()
    script.fails("in_1", "sub_1")
    script.changes("sub_1", status="past_due")
    script.ends("sub_1")
    script.later()
    script.pays("in_1", "sub_1")
    script.later()
    script.changes("sub_2", cancels=True)


def voided_invoices(script: Script) -> None:
    """Of three failed invoices one is voided, one is given up after the status said so, and one
    belongs to another.
    """
    script.appears("sub_1", items=(("price_business", 1),), status="trialing")
    script.appears("sub_2", items=(("price_pro", 1),))
    script.later()
    script.fails("in_1", "sub_1")
    script.later()
    script.gives_up("in_9", "sub_1")
    script.later()
    script.gives_up("in_1", "sub_1")
    script.later()
    script.changes("sub_2", status="past_due")
    script.later()
    script.gives_up("in_2", "sub_2", ev.INVOICE_UNCOLLECTIBLE)


def voided_after_unpaid(script: Script) -> None:
    """The first invoice was paid while the status was unpaid; the second one is voided."""
    script.appears("sub_1", items=(("price_pro", 1),))
    script.later()
    script.fails("in_1", "sub_1")
    script.later()
    script.changes("sub_1", status="unpaid")
    script.later()
    script.pays("in_1", "sub_1")
    script.later(HOUR)
    script.fails("in_2", "sub_1")
    script.later()
    script.gives_up("in_2", "sub_1")


def voided_after_an_update(script: Script) -> None:
    """The update in between owes nothing, so that the first invoice is settled when the second one
    is voided.
    """
    script.appears("sub_1", items=(("price_pro", 1),))
    script.later()
    script.fails("in_1", "sub_1")
    script.later()
    script.changes("sub_1", cancels=True)
    script.later()
    script.fails("in_2", "sub_1")
    script.later()
    script.gives_up("in_2", "sub_1")
    script.later()
    script.gives_up("in_1", "sub_1")


def voided_with_another_open(script: Script) -> None:
    """Of three failed invoices one is paid, and the second one is still open when the third one is
    voided.
    """
    script.appears("sub_1", items=(("price_pro", 1),))
    script.later()
    script.fails("in_1", "sub_1")
    script.later()
    script.fails("in_2", "sub_1")
    script.later()
    script.pays("in_1", "sub_1")
    script.later()
    script.fails("in_3", "sub_1")
    script.later()
    script.gives_up("in_3", "sub_1")
    script.later()
    script.gives_up("in_2", "sub_1")


def paid_while_unpaid(script: Script) -> None:
    """A payment takes an unpaid subscription back to unpaid: it is past due since the first
    failure.
    """
    script.appears("sub_1", status="past_due", items=(("price_business", 1),))
    script.later(HOUR)
    script.changes("sub_1", status="unpaid")
    script.later(HOUR)
    script.fails("in_1", "sub_1")
    script.later(HOUR)
    script.pays("in_1", "sub_1")
    script.later(HOUR)
    script.appears("sub_2", items=(("price_pro", 1),), pause="void")


def payment_of_an_unknown_one(script: Script) -> None:
    """A payment that names an unknown subscription changes nothing."""
    script.appears("sub_1", items=(("price_pro", 1),))
    script.later()
    script.ends("sub_1")
    script.later()
    script.pays("in_2", "sub_2")
    script.later()
    script.pays("in_3")


def two_of_one_plan_one_paused(script: Script) -> None:
    """The newer one ends with its paid period. The older one gives the same access, so the access
    has no end.
    """
    script.appears("sub_1", items=(("price_pro", 1),))
    script.later()
    script.appears("sub_2", items=(("price_pro", 1),))
    script.later()
    script.changes("sub_2", pause="void")
    script.later()
    script.changes("sub_1", pause="keep_as_draft")


def answers_of_the_provider(script: Script) -> None:
    script.appears("sub_1", items=(("price_business", 1),), cancels=True)
    script.later()
    script.appears("sub_2", items=(("price_pro", 1),))
    script.later()
    script.observed("sub_1", status="canceled", ended_at=START + 3)
    script.later()
    script.observed("sub_2", status="past_due")
    script.later()
    script.pays("in_2", "sub_2")
    script.later()
    script.fails("in_1", "sub_1")
    script.later()
    script.begins("sub_3")
    script.observed("sub_3", status="incomplete_expired")


def three_of_one_plan(script: Script) -> None:
    """Equal plans: the newest counts, then the greatest id; in the end two are over."""
    script.appears("sub_2", items=(("price_pro", 2),))
    script.appears("sub_1", items=(("price_pro_yearly", 1),))
    script.later()
    script.appears("sub_0", items=(("price_pro", 3),))
    script.later()
    script.changes("sub_2", cancels=True)
    script.later()
    script.ends("sub_0")
    script.later()
    script.changes("sub_1", status="paused")


def only_invoices(script: Script) -> None:
    """No event of the subscriptions arrives."""
    script.pays("in_1", "sub_1")
    script.later()
    script.fails("in_2", "sub_2")
    script.later()
    script.fails("in_2", "sub_2")
    script.later()
    script.fails("in_3")
    script.later()
    script.pays("in_4", "sub_4")
    script.later()
    script.fails("in_5", "sub_4")
    script.pays("in_5", "sub_4")


NAMED_HISTORIES: Final = (
    *UPGRADES,
    NamedHistory(two_plans_at_once),
    NamedHistory(two_plans_at_once, catalog=RANKED),
    NamedHistory(recovery_beside_an_active_one),
    NamedHistory(past_due_for_ever_beside_a_lower_plan),
    NamedHistory(past_due_for_ever_beside_a_lower_plan, catalog=SHARED_GRACE),
    NamedHistory(old_changes_after_the_new),
    NamedHistory(unpaid_beside_an_ended_one),
    NamedHistory(unpaid_beside_an_ended_one, catalog=LENIENT),
    NamedHistory(paused_and_resumed),
    NamedHistory(void_pause_beside_grace),
    NamedHistory(flexible_cancellation),
    NamedHistory(both_flexible_and_over),
    NamedHistory(invoices_with_and_without_a_subscription),
    NamedHistory(addon_beside_a_plan),
    NamedHistory(addon_beside_a_plan, catalog=RANKED),
    NamedHistory(addon_that_outlives_the_plan),
    NamedHistory(created_with_updated),
    NamedHistory(deleted_with_invoices),
    NamedHistory(voided_invoices),
    NamedHistory(voided_after_unpaid),
    NamedHistory(voided_after_unpaid, catalog=LENIENT),
    NamedHistory(voided_after_an_update),
    NamedHistory(voided_with_another_open),
    NamedHistory(paid_while_unpaid),
    NamedHistory(paid_while_unpaid, catalog=LENIENT),
    NamedHistory(payment_of_an_unknown_one),
    NamedHistory(two_of_one_plan_one_paused),
    NamedHistory(answers_of_the_provider),
    NamedHistory(three_of_one_plan),
    NamedHistory(only_invoices),
)

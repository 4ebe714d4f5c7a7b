"""The oracle of billing gives the ends that the documentation states."""

from collections.abc import Mapping
from itertools import product

from tenantry.domain.billing.state import SubscriptionRule
from tests.support.billing_examples import BillingExample, billing_examples
from tests.support.billing_oracle import judge
from tests.support.billing_oracle_events import INVOICE_TYPES, SUBSCRIPTION_TYPES, told_by
from tests.support.billing_oracle_records import ExpectedTenant
from tests.support.catalogs import CATALOG
from tests.support.events import Shape
from tests.support.histories import PLOTS, Record, plot_history
from tests.support.subscription_oracle import Expected, Rules

NOW = 1_795_176_000


def _stated(tenant: ExpectedTenant, names: Mapping[str, object]) -> dict[str, object]:
    shown = tenant.record._asdict() | {
        "access": (tenant.access.state, tenant.access.plan),
        "access_until": tenant.access.until,
    }
    return {name: shown[name] for name in names}


def _faults(example: BillingExample) -> list[str]:
    verdict = judge(example.history, NOW)
    found = []
    for tenant, ends in example.ends.items():
        if (judged := _stated(verdict.tenants[tenant], ends)) != ends:
            found.append(f"{example.name}: {judged}, not {ends}")
    for tenant, mails in example.mails.items():
        kinds = sorted(mail.kind for mail in verdict.mails.elements() if mail.tenant == tenant)
        if kinds != sorted(mails):
            found.append(f"{example.name}: mails {kinds}, not {mails}")
    return found


def test_the_oracle_gives_the_ends_that_the_documentation_states() -> None:
    examples = billing_examples(NOW)
    assert len({example.name for example in examples}) == len(examples)
    assert [fault for example in examples for fault in _faults(example)] == []


def test_the_oracle_gives_the_ends_that_the_stories_tell() -> None:
    rules = Rules(CATALOG, subscriptions=SubscriptionRule.ANY)
    for plot, shape in product(PLOTS, Shape):
        history = plot_history(plot, shape)
        told = [
            told_by(event)
            for event in history.events
            if event["type"] in SUBSCRIPTION_TYPES | INVOICE_TYPES
        ]
        assert Expected(told, rules).record[: len(Record._fields)] == history.truth, plot.name

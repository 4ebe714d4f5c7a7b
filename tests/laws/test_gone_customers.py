"""A customer that was deleted at the provider: the tenant uses another one, in every order of
delivery.
"""

from itertools import permutations

from tenantry.domain.billing.events import CUSTOMER_DELETED, BillingEvent
from tests.support.facts import ANY, completed, updated
from tests.support.ledger import Ledger


def customer_deleted(customer_id: str) -> BillingEvent:
    return BillingEvent(
        id=f"evt_{customer_id}", type=CUSTOMER_DELETED, created=200, customer_id=customer_id
    )


def test_every_order_ends_with_the_customer_that_can_be_used() -> None:
    history = [
        completed(100, "evt_1"),
        updated(150, "evt_2"),
        customer_deleted("cus_1"),
        completed(300, "evt_3", customer_id="cus_2"),
    ]
    for order in permutations(history):
        ledger = Ledger(ANY, customers=())
        for event in order:
            ledger.deliver([event])
        names = [event.id for event in order]
        assert ledger.account.customer_id == "cus_2", names


def test_the_only_customer_leaves_the_tenant_without_one() -> None:
    for order in permutations([completed(100), updated(150), customer_deleted("cus_1")]):
        ledger = Ledger(ANY, customers=())
        for event in order:
            ledger.deliver([event])
        assert ledger.account.customer_id is None, [event.id for event in order]

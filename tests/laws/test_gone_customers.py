"""A customer that was deleted at the provider: the tenant uses another one, in every order of
delivery.
"""

from itertools import permutations

from tenantry.domain.billing.events import CUSTOMER_DELETED, CUSTOMER_MISSING, BillingEvent
from tests.support.facts import ANY, completed, failed, observed, updated
from tests.support.ledger import TENANT, Ledger, ledger_of


def customer_deleted(customer_id: str) -> BillingEvent:
    return BillingEvent(
        id=f"evt_{customer_id}", type=CUSTOMER_DELETED, created=200, customer_id=customer_id
    )


def missing(created: int, event_id: str = "missing") -> BillingEvent:
    """The provider's answer to an API key."""
    return BillingEvent(
        id=event_id, type=CUSTOMER_MISSING, created=created, org_id=TENANT, customer_id="cus_1"
    )


def test_every_order_ends_with_the_customer_that_can_be_used() -> None:
    history = [
        completed(100, "evt_1"),
        updated(150, "evt_2"),
        customer_deleted("cus_1"),
        completed(300, "evt_3", customer_id="cus_2"),
    ]
    for order in permutations(history):
        ledger = ledger_of(ANY, order, customers=())
        names = [event.id for event in order]
        assert ledger.account.customer_id == "cus_2", names


def test_the_only_customer_leaves_the_tenant_without_one() -> None:
    for order in permutations([completed(100), updated(150), customer_deleted("cus_1")]):
        ledger = ledger_of(ANY, order, customers=())
        assert ledger.account.customer_id is None, [event.id for event in order]


def test_a_customer_is_used_again_after_a_newer_event_of_it() -> None:
    """Unless it was deleted: an answer can be one to another account's API key."""
    of_customer = {"customer_id": "cus_1"}
    cases = [
        ([missing(200), updated(300, **of_customer)], "cus_1"),
        ([missing(200), completed(300)], "cus_1"),
        ([missing(200), failed(300)], "cus_1"),
        ([missing(200), observed(300, **of_customer)], "cus_1"),
        ([missing(200), observed(300, status="canceled", **of_customer)], None),
        ([missing(200), updated(200, **of_customer)], None),
        ([missing(200), completed(300), missing(400, "again")], None),
        ([missing(200), customer_deleted("cus_1"), updated(300, **of_customer)], None),
        ([completed(100, "c0", customer_id="cus_0"), missing(200), completed(300)], "cus_1"),
    ]
    for history, expected in cases:
        for order in permutations(history):
            for batches in ([order], [[event] for event in order]):
                ledger = Ledger(ANY, customers=("cus_0", "cus_1"))
                ledger.deliver([customer_deleted("cus_0")])
                for batch in batches:
                    ledger.deliver(batch)
                found = ledger.account.customer_id
                assert found == expected, [(event.type, event.created) for event in order]

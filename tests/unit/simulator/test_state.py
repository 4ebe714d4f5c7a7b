"""A simulated account that is kept: another simulator continues with it as the first one would
have.
"""

import httpx2
import pytest

from tenantry_devkit.simulator import AccountState, Simulator, State
from tests.support.simulator import DAY, SECRET, WEBHOOK, Receiver, a_simulator, types

MOVED = "http://127.0.0.1:4000"


async def eventful(sim: Simulator) -> None:
    """Leave something of every kind to come: a trial, a retry, a cancellation, a checkout."""
    sim.subscribe(sim.customer("cus_trial"), "price_pro", trial_days=10)
    sim.subscribe(sim.customer("cus_fails"), "price_business")
    sim.card_declines("cus_fails")
    await sim.advance(days=31, seconds=10)
    sim.subscribe(sim.customer("cus_unpaid", card=sim.customers["cus_fails"].card), "price_pro")
    sim.subscribe(sim.customer("cus_ends"), "price_pro", cancel_at=sim.account.now + 5 * DAY)
    sim.checkout("price_pro", customer="cus_trial")


async def test_restored_account_continues_its_agenda() -> None:
    first = a_simulator()
    await eventful(first)
    second = a_simulator(seed=1, prices={}, start=first.now, url=MOVED)
    second.restore(AccountState.decode(first.state().encode()))
    seen = len(first.events())
    for sim in (first, second):
        await sim.advance(days=60)
    assert types(second.events()) == types(first.events())
    assert [event.created for event in second.events()] == [
        event.created for event in first.events()
    ]
    assert len(second.events()) > seen + 10
    restored, fresh = list(first.invoices.values()), list(second.invoices.values())
    assert [invoice.number for invoice in fresh] == [invoice.number for invoice in restored]
    assert {str(invoice.hosted_invoice_url).partition("/i/")[0] for invoice in fresh} == {MOVED}
    assert not {event.id for event in second.events()[seen:]} & {
        event.id for event in first.events()
    }


async def test_restored_account_delivers_rejected_events() -> None:
    receiver = Receiver()
    receiver.statuses.extend([503] * 10)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(receiver)) as client:
        first = a_simulator(client=client)
        first.add_endpoint(WEBHOOK, SECRET)
        first.customer("cus_a")
        await first.deliver()
        assert receiver.ids == []
        receiver.statuses.clear()
        second = a_simulator(client=client, seed=1, prices={}, start=first.now)
        second.restore(first.state())
        await second.deliver()
    assert receiver.ids == [event.id for event in first.events()[-1:]]
    assert second.deliveries()[-1].state is State.DELIVERED


def test_malformed_state_is_rejected() -> None:
    for content in (b"", b"{}", b"\xff", b'{"now": "soon"}'):
        with pytest.raises(ValueError, match="this is not the state of a simulated account"):
            AccountState.decode(content)

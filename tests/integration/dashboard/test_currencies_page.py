"""The Billing page with prices in several currencies."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenantry_devkit.simulator import Simulator
from tests.support.dashboard import Dashboard, Person, dashboard_of_file
from tests.support.postgres import PostgresServer
from tests.support.selling import (
    BILLING,
    link,
    selling_settings,
    simulated_provider,
    until_prices_are_shown,
)


@pytest.fixture(scope="module")
async def sim() -> AsyncIterator[Simulator]:
    async with simulated_provider() as sim:
        sim.price("price_pro", 2900, currency_options={"jpy": 4800, "kwd": 9500})
        sim.price("price_pro_yearly", 29000, interval="year", currency_options={"jpy": 48000})
        yield sim


@pytest.fixture(scope="module")
async def shared_dashboard(
    postgres: PostgresServer, people: Path, sim: Simulator
) -> AsyncIterator[Dashboard]:
    async with dashboard_of_file(postgres, people, **selling_settings(sim)) as dashboard:
        async with dashboard.reset():
            await until_prices_are_shown(await dashboard.sign_in())
        yield dashboard


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def checkout_in(owner: Person, sim: Simulator, path: str) -> str:
    """Subscribe to Pro on a page; return the currency and amount of the checkout that begins."""
    page = await owner.open(path)
    answer = await owner.fill(page.form_of("Subscribe to Pro"))
    assert answer.status == 200, answer.text
    session = sim.expire(list(sim.checkout_sessions.values())[-1])  # it binds the customer
    return f"{session.charge.total} {session.currency}"


async def test_new_customer_chooses_a_currency_and_pays_in_it(
    owner: Person, sim: Simulator
) -> None:
    page = await owner.open(BILLING)
    assert "Pro 29.00 EUR a month" in page.text
    links = {text: href.partition("#")[0] for text, href in page.anchors}
    assert [text for text, href in page.anchors if "currency=" in href] == ["EUR", "JPY", "KWD"]
    assert "Pro 9.500 KWD a month" in (await owner.open(links["KWD"])).text
    yen = await owner.open(links["JPY"])
    assert "Pro 4,800 JPY a month" in yen.text
    assert "Business 99.00 EUR a month" in yen.text
    [yearly] = [href for text, href in yen.anchors if text == "Yearly"]
    assert "Pro 48,000 JPY a year" in (await owner.open(yearly.partition("#")[0])).text
    assert await checkout_in(owner, sim, links["JPY"]) == "4800 jpy"


async def test_checkout_without_a_choice_is_left_to_the_provider(
    owner: Person, sim: Simulator
) -> None:
    page = await owner.open(BILLING)
    assert "currency" not in page.form_of("Subscribe to Pro").fields
    assert await checkout_in(owner, sim, BILLING) == "2900 eur"


async def test_customer_sees_the_own_currency(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    session = sim.complete(sim.checkout("price_pro", currency="jpy"))
    assert session.customer is not None
    sim.cancel(session.subscription or "")
    await link(dashboard, session.customer)
    page = await owner.open(f"{BILLING}?currency=kwd")
    assert "Pro 4,800 JPY a month" in page.text
    assert not [href for _, href in page.anchors if "currency=" in href]


async def test_refused_currency_is_explained_in_our_words(
    dashboard: Dashboard, owner: Person, sim: Simulator
) -> None:
    session = sim.complete(sim.checkout("price_pro", currency="kwd"))
    assert session.customer is not None
    await link(dashboard, session.customer)
    answer = await owner.force(f"{BILLING}/checkout", plan="pro", currency="jpy")
    assert answer.status == 422
    assert "pays in another currency already" in answer.text
    assert "combine" not in answer.text


@pytest.mark.parametrize("currency", ["JPY", "<b>", "9" * 5000])
async def test_malformed_currency_of_a_form_is_explained(
    owner: Person, sim: Simulator, currency: str
) -> None:
    begun = len(sim.checkout_sessions)
    answer = await owner.force(f"{BILLING}/checkout", plan="pro", currency=currency)
    assert answer.status == 422
    assert "must be three lowercase letters" in answer.text
    assert len(sim.checkout_sessions) == begun

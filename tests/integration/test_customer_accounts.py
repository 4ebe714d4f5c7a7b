"""How long the service keeps what the provider knows of a customer, and how long a page waits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tenantry.billing.customer_accounts import CustomerAccounts
from tenantry.common.secret import Secret
from tenantry.domain.errors import ProviderUnavailableError
from tenantry.integrations.stripe.client import ProviderApi
from tests.support import events
from tests.support.provider_api import KEY, ProviderServer, refusal, running_provider

CUSTOMER: Final = "cus_acme"
OTHER: Final = "cus_beta"
PATIENT: Final = 20.0


class SetClock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def provider() -> AsyncIterator[ProviderServer]:
    async with running_provider() as provider:
        provider.subscriptions = {CUSTOMER: [], OTHER: []}
        yield provider


@pytest.fixture
async def api(provider: ProviderServer) -> AsyncIterator[ProviderApi]:
    async with aclosing(ProviderApi(Secret(KEY), provider.url)) as api:
        yield api


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def accounts(api: ProviderApi, clock: SetClock) -> AsyncIterator[CustomerAccounts]:
    async with aclosing(CustomerAccounts(api, PATIENT, clock)) as accounts:
        yield accounts


@pytest.fixture
async def hasty(api: ProviderApi, clock: SetClock) -> AsyncIterator[CustomerAccounts]:
    """The same, for pages that wait for nothing."""
    async with aclosing(CustomerAccounts(api, 0.0, clock)) as accounts:
        yield accounts


def reads(provider: ProviderServer) -> int:
    """How often customers were read."""
    return sum(request.path.startswith("/v1/customers/") for request in provider.page_requests)


async def test_customer_is_kept_for_a_minute(
    provider: ProviderServer, accounts: CustomerAccounts, clock: SetClock
) -> None:
    await accounts.find(CUSTOMER)
    clock.now = 59.0
    await accounts.find(CUSTOMER)
    assert reads(provider) == 1
    clock.now = 60.0
    await accounts.find(CUSTOMER)
    assert reads(provider) == 2


async def test_page_that_does_not_wait_shows_what_an_earlier_one_began_to_read(
    provider: ProviderServer, accounts: CustomerAccounts, clock: SetClock
) -> None:
    assert accounts.known(CUSTOMER) is None
    assert accounts.known(CUSTOMER) is None
    read = await accounts.find(CUSTOMER)
    assert accounts.known(CUSTOMER) == read
    assert reads(provider) == 1
    clock.now = 60.0
    assert accounts.known(CUSTOMER) is None


async def test_abandoned_subscriptions_hide_none_that_can_be_changed(
    provider: ProviderServer, accounts: CustomerAccounts
) -> None:
    abandoned = ("incomplete_expired", "canceled", *["incomplete"] * 100)
    statuses = ("active", *abandoned, "trialing")
    provider.subscriptions = {CUSTOMER: [_subscription(*each) for each in enumerate(statuses)]}
    account = await accounts.find(CUSTOMER)
    assert [each.id for each in account.subscriptions] == ["sub_0", f"sub_{len(abandoned) + 1}"]


async def test_ten_subscriptions_are_read(
    provider: ProviderServer, accounts: CustomerAccounts
) -> None:
    provider.subscriptions = {CUSTOMER: [_subscription(each, "active") for each in range(101)]}
    account = await accounts.find(CUSTOMER)
    assert [each.id for each in account.subscriptions] == [f"sub_{each}" for each in range(10)]
    pages = [each for each in provider.page_requests if each.path == "/v1/subscriptions"]
    assert len(pages) == 1


def _subscription(number: int, status: str) -> dict[str, Any]:
    whole = events.subscription(status=status, subscription_id=f"sub_{number}")
    return {**whole, "default_payment_method": None}


async def test_customers_are_kept_apart(
    provider: ProviderServer, accounts: CustomerAccounts
) -> None:
    await accounts.find(CUSTOMER)
    await accounts.find(OTHER)
    assert [request.path for request in provider.page_requests if "customers" in request.path] == [
        f"/v1/customers/{CUSTOMER}",
        f"/v1/customers/{OTHER}",
    ]


async def test_failure_is_kept_for_ten_seconds(
    provider: ProviderServer, accounts: CustomerAccounts, clock: SetClock
) -> None:
    provider.page_answer = refusal(500)
    for now in (0.0, 9.0):
        clock.now = now
        with pytest.raises(ProviderUnavailableError):
            await accounts.find(CUSTOMER)
    assert reads(provider) == 1
    provider.page_answer = None
    clock.now = 10.0
    await accounts.find(CUSTOMER)


async def test_forgotten_customer_is_read_again(
    provider: ProviderServer, accounts: CustomerAccounts
) -> None:
    await accounts.find(CUSTOMER)
    accounts.forget(CUSTOMER)
    await accounts.find(CUSTOMER)
    assert reads(provider) == 2


async def test_customer_of_a_changed_tenant_is_read_again(
    provider: ProviderServer, accounts: CustomerAccounts
) -> None:
    earlier = datetime(2026, 10, 1, tzinfo=UTC)
    later = earlier + timedelta(seconds=1)
    await accounts.find(CUSTOMER, earlier)
    assert accounts.known(CUSTOMER, earlier) is not None
    assert accounts.known(CUSTOMER, later) is None
    await accounts.find(CUSTOMER, later)
    assert reads(provider) == 2


async def test_pages_share_a_read(provider: ProviderServer, accounts: CustomerAccounts) -> None:
    await asyncio.gather(*[accounts.find(CUSTOMER) for _ in range(5)])
    assert reads(provider) == 1


async def test_read_goes_on_without_the_page(
    provider: ProviderServer, hasty: CustomerAccounts
) -> None:
    with pytest.raises(ProviderUnavailableError, match="takes long"):
        await hasty.find(CUSTOMER)
    async with asyncio.timeout(PATIENT):
        while True:
            try:
                await hasty.find(CUSTOMER)
            except ProviderUnavailableError:
                await provider.until_page_requested(len(provider.page_requests))
            else:
                break
    assert reads(provider) == 1


async def test_read_that_was_forgotten_meanwhile_is_not_kept(
    provider: ProviderServer, hasty: CustomerAccounts
) -> None:
    provider.open.clear()
    with pytest.raises(ProviderUnavailableError):
        await hasty.find(CUSTOMER)
    await provider.until_page_requested(3)
    hasty.forget(CUSTOMER)
    with pytest.raises(ProviderUnavailableError):
        await hasty.find(CUSTOMER)
    await provider.until_page_requested(6)
    assert reads(provider) == 2
    provider.open.set()


async def test_reads_under_way_are_shared_until_they_end(api: ProviderApi, clock: SetClock) -> None:
    begun, ended = list[str](), list[str]()

    @asynccontextmanager
    async def stuck(customer_id: str) -> AsyncIterator[None]:
        begun.append(customer_id)
        try:
            await asyncio.Event().wait()
            yield
        finally:
            ended.append(customer_id)

    others = [f"cus_{number}" for number in range(1000)]
    async with aclosing(CustomerAccounts(api, 0.0, clock, stuck)) as accounts:
        for customer_id in (CUSTOMER, *others, CUSTOMER):
            with pytest.raises(ProviderUnavailableError):
                await accounts.find(customer_id)
        accounts.forget(CUSTOMER)
    assert begun == [CUSTOMER, *others]
    assert sorted(ended) == sorted(begun)


async def test_malformed_answer_is_a_failure(
    provider: ProviderServer, accounts: CustomerAccounts
) -> None:
    provider.page_answer = refusal(500)._replace(status=200, body={"data": "nothing"})
    with pytest.raises(ProviderUnavailableError, match="cannot be used"):
        await accounts.find(CUSTOMER)


async def test_customer_that_the_provider_does_not_know_has_nothing(
    accounts: CustomerAccounts,
) -> None:
    account = await accounts.find("cus_unknown")
    assert (account.subscriptions, account.invoices, account.payment_method) == ((), (), None)

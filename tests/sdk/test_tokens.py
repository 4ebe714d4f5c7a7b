"""Access tokens: where they come from, and that they are renewed once for all who wait."""

import asyncio
import itertools
import threading
import time
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from tenantry_sdk import (
    AsyncTenantry,
    ClientCredentials,
    FileStore,
    RefreshToken,
    Secret,
    Token,
    errors,
)
from tests.sdk.sdk_support import Flavour, Served, answered_by, serving
from tests.sdk.token_endpoint import CLIENT_ID, CLIENT_SECRET, TokenEndpoint, token_endpoint
from tests.support.cases import cases
from tests.support.postgres import PostgresServer
from tests.support.service import Organization

AT_ONCE: Final = 50


@pytest.fixture(scope="module")
async def served(postgres: PostgresServer) -> AsyncIterator[Served]:
    """The service of this file, whose tests move the clock forward; each has a separate
    organization.
    """
    with postgres.database() as conninfo:
        async with serving(conninfo) as running:
            yield running


@pytest.fixture
async def organization(served: Served) -> Organization:
    return await served.service.organization()


@pytest.fixture
async def endpoint(served: Served, organization: Organization) -> AsyncIterator[TokenEndpoint]:
    """Its tokens are of an owner of the organization, and each is another."""
    numbers = itertools.count()

    def mint() -> str:
        return str(
            served.service.user(
                "olivia", org=organization.id, role="owner", jti=str(next(numbers))
            ).credential
        )

    async with token_endpoint(mint) as running:
        yield running


def refreshing(endpoint: TokenEndpoint, **more: object) -> RefreshToken:
    options: Any = {"refresh_token": "refresh-0", **more}
    return RefreshToken(issuer=endpoint.url, client_id=CLIENT_ID, **options)


def stored_token(access_token: str, *, ends_in: float) -> Token:
    return Token(Secret(access_token), time.time() + ends_in, Secret("refresh-0"), 3600.0)


async def test_first_call_fetches_a_token(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    async with flavour.client(base_url=served.url, tokens=refreshing(endpoint)) as client:
        who = [await client.auth.whoami() for _ in range(3)]
    assert {one.id for one in who} == {"olivia"}
    assert [form["grant_type"] for form in endpoint.grants] == ["refresh_token"]


async def test_expired_token_is_renewed_once_for_all_waiting_calls(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "token")
    store.save(stored_token("old", ends_in=-1))
    async with flavour.client(
        base_url=served.url, tokens=refreshing(endpoint, store=store)
    ) as client:
        who = await asyncio.gather(*(client.auth.whoami() for _ in range(AT_ONCE)))
    assert [one.id for one in who] == ["olivia"] * AT_ONCE
    assert len(endpoint.grants) == 1
    assert (store.load() or stored_token("", ends_in=0)).refresh_token == Secret(
        endpoint.refresh_token
    )


async def test_token_is_renewed_before_it_ends(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "token")
    store.save(stored_token("old", ends_in=29))
    async with flavour.client(
        base_url=served.url, tokens=refreshing(endpoint, store=store)
    ) as client:
        assert (await client.auth.whoami()).id == "olivia"
    assert len(endpoint.grants) == 1


async def test_rejected_token_is_renewed_once_for_all_calls(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    async with flavour.client(base_url=served.url, tokens=refreshing(endpoint)) as client:
        await client.auth.whoami()
        served.service.clock.advance(hours=2)
        who = await asyncio.gather(*(client.auth.whoami() for _ in range(AT_ONCE)))
    assert [one.id for one in who] == ["olivia"] * AT_ONCE
    assert len(endpoint.grants) == 2


async def test_create_is_carried_out_once_though_its_token_was_refused(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    async with flavour.client(base_url=served.url, tokens=refreshing(endpoint)) as client:
        await client.auth.whoami()
        served.service.clock.advance(hours=2)
        made = await client.projects.create(name="Once")
        listed = [project.id async for project in client.projects.list()]
    assert listed == [made.id]


async def test_token_that_is_refused_again_is_an_error_and_no_loop(
    served: Served, flavour: Flavour
) -> None:
    async with (
        token_endpoint(lambda: "a.b.c") as endpoint,
        flavour.client(base_url=served.url, tokens=refreshing(endpoint)) as client,
    ):
        with pytest.raises(errors.AuthenticationError):
            await client.auth.whoami()
        assert len(endpoint.grants) == 2


async def test_rejection_by_the_identity_provider_does_not_show_the_refresh_token(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    tokens = refreshing(endpoint, refresh_token="stolen-and-used")
    async with flavour.client(base_url=served.url, tokens=tokens) as client:
        with pytest.raises(errors.TokenRefreshError, match="used before") as raised:
            await client.auth.whoami()
    assert raised.value.code == "invalid_grant"
    assert "stolen-and-used" not in f"{raised.value} {raised.value!r} {tokens!r}"


async def test_valid_token_is_used_while_the_identity_provider_is_unreachable(
    served: Served, organization: Organization, flavour: Flavour, tmp_path: Path
) -> None:
    good = served.service.user("olivia", org=organization.id, role="owner").credential
    store = FileStore(tmp_path / "token")
    store.save(stored_token(str(good), ends_in=29))
    away = RefreshToken(issuer="http://127.0.0.1:9", client_id=CLIENT_ID, store=store)
    async with flavour.client(base_url=served.url, tokens=away) as client:
        assert (await client.auth.whoami()).id == "olivia"


async def test_without_a_token_that_lasts_the_identity_provider_is_needed(
    served: Served, flavour: Flavour
) -> None:
    away = RefreshToken(issuer="http://127.0.0.1:9", client_id=CLIENT_ID, refresh_token="refresh-0")
    async with flavour.client(base_url=served.url, tokens=away) as client:
        with pytest.raises(errors.TokenRefreshError, match=r"127\.0\.0\.1 is unreachable"):
            await client.auth.whoami()


async def test_hanging_identity_provider_delays_calls_at_most_by_the_timeout(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    endpoint.open.clear()
    async with flavour.client(
        base_url=served.url, tokens=refreshing(endpoint), timeout=0.2
    ) as client:
        with pytest.raises(errors.TokenTimedOutError):
            await client.auth.whoami()
        endpoint.open.set()


async def test_program_signs_in_by_its_own_secret(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    tokens = ClientCredentials(
        issuer=endpoint.url,
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
        audience="tenantry-api",
    )
    async with flavour.client(base_url=served.url, tokens=tokens) as client:
        assert (await client.auth.whoami()).id == "olivia"
    assert endpoint.grants == [
        {
            "grant_type": "client_credentials",
            "audience": "tenantry-api",
            "resource": "tenantry-api",
            "basic": "cli:secret%20of%20the%20client%3A%20100%25",
        }
    ]
    assert CLIENT_SECRET not in repr(tokens)


async def test_function_gives_tokens(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    given = []

    def tokens() -> str:
        given.append(endpoint._mint())
        return given[-1]

    async with flavour.client(base_url=served.url, tokens=tokens) as client:
        await client.auth.whoami()
        await client.auth.whoami()
        served.service.clock.advance(hours=2)
        await client.auth.whoami()
    # The tokens say themselves when they end, and by this machine's clock they have: each call asks
    # for another.
    assert len(given) >= 3


async def test_asynchronous_function_gives_tokens(served: Served, endpoint: TokenEndpoint) -> None:
    async def tokens() -> Token:
        return stored_token(endpoint._mint(), ends_in=3600)

    async with AsyncTenantry(base_url=served.url, tokens=tokens) as client:
        assert (await client.auth.whoami()).id == "olivia"


async def test_clients_that_share_a_store_renew_once(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour, tmp_path: Path
) -> None:
    FileStore(tmp_path / "token").save(stored_token("old", ends_in=-1))

    async def call() -> str:
        tokens = RefreshToken(
            issuer=endpoint.url, client_id=CLIENT_ID, store=FileStore(tmp_path / "token")
        )
        async with flavour.client(base_url=served.url, tokens=tokens) as client:
            return str((await client.auth.whoami()).id)

    assert await asyncio.gather(*(call() for _ in range(8))) == ["olivia"] * 8
    assert len(endpoint.grants) == 1


@cases("issuer", ["http://login.example.com", "login.example.com", "ftp://127.0.0.1"])
async def test_secret_is_not_sent_where_it_can_be_read(flavour: Flavour, issuer: str) -> None:
    tokens = RefreshToken(issuer=issuer, client_id=CLIENT_ID, refresh_token="refresh-0")
    async with flavour.client(tokens=tokens) as client:
        with pytest.raises(errors.ConfigurationError, match="https"):
            await client.auth.whoami()


async def test_issuer_that_calls_itself_otherwise_is_not_believed(
    endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    tokens = refreshing(endpoint)
    endpoint.url = "https://login.example.com"
    async with flavour.client(tokens=tokens) as client:
        with pytest.raises(errors.TokenRefreshError, match="names another issuer"):
            await client.auth.whoami()
    assert endpoint.grants == []


async def test_renewal_continues_after_its_call_is_canceled(
    served: Served, endpoint: TokenEndpoint
) -> None:
    async with AsyncTenantry(base_url=served.url, tokens=refreshing(endpoint)) as client:
        endpoint.open.clear()
        first = asyncio.create_task(client.auth.whoami())
        await endpoint.until_asked()
        first.cancel()
        second = asyncio.create_task(client.auth.whoami())
        endpoint.open.set()
        assert (await second).id == "olivia"
        with pytest.raises(asyncio.CancelledError):
            await first
    assert [form["refresh_token"] for form in endpoint.grants] == ["refresh-0"]


async def test_token_that_comes_too_late_for_its_call_is_the_next_ones(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    async with flavour.client(
        base_url=served.url, tokens=refreshing(endpoint), timeout=0.3
    ) as client:
        endpoint.open.clear()
        with pytest.raises(errors.TimedOutError):
            await client.auth.whoami()
        endpoint.open.set()
        await endpoint.until_asked()
    async with flavour.client(
        base_url=served.url, tokens=refreshing(endpoint, refresh_token="refresh-1")
    ) as client:
        assert (await client.auth.whoami()).id == "olivia"


async def test_token_that_cannot_be_kept_is_used_all_the_same(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour, tmp_path: Path
) -> None:
    class Full(FileStore):
        def save(self, token: Token) -> None:
            raise errors.ConfigurationError(f"no room for {token!r}")

    store = Full(tmp_path / "token")
    async with flavour.client(
        base_url=served.url, tokens=refreshing(endpoint, store=store)
    ) as client:
        await client.auth.whoami()
        served.service.clock.advance(hours=2)
        assert (await client.auth.whoami()).id == "olivia"
    assert [form["refresh_token"] for form in endpoint.grants] == ["refresh-0", "refresh-1"]


async def test_token_that_lasts_is_used_where_no_other_is_to_be_had(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    good = str(endpoint._mint())
    given = iter([stored_token(good, ends_in=29)])

    def tokens() -> Token:
        return next(given)

    async with flavour.client(base_url=served.url, tokens=tokens) as client:
        # the second one is due, and there is none
        who = [await client.auth.whoami() for _ in range(3)]
    assert {one.id for one in who} == {"olivia"}


async def test_failure_is_shared_by_all_waiting_calls(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    tokens = refreshing(endpoint, refresh_token="dead")
    async with flavour.client(base_url=served.url, tokens=tokens) as client:
        results = await asyncio.gather(
            *(client.auth.whoami() for _ in range(10)), return_exceptions=True
        )
    assert {type(result) for result in results} == {errors.TokenRefreshError}
    assert len(endpoint.grants) == 1


async def test_calls_that_share_a_failure_have_their_own_errors(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    tokens = refreshing(endpoint, refresh_token="dead")
    keys = [f"order-{number}" for number in range(10)]
    async with flavour.client(base_url=served.url, tokens=tokens) as client:
        results = await asyncio.gather(
            *(client.projects.create(name="First", idempotency_key=key) for key in keys),
            return_exceptions=True,
        )
    assert [vars(result)["idempotency_key"] for result in results] == keys


async def test_missing_token_after_a_lost_response_leaves_the_creation_to_be_repeated(
    flavour: Flavour,
) -> None:
    given = iter([Token(Secret("expired"), time.time() - 1.0)])

    def lose(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError("lost", request=request)

    async with answered_by(flavour, lose, None, tokens=lambda: next(given)) as client:
        with pytest.raises(errors.TokenRefreshError) as raised:
            await client.projects.create(name="First", idempotency_key="order-17")
    assert (raised.value.idempotency_key, raised.value.after_lost_answer) == ("order-17", True)


async def test_function_that_hangs_is_waited_for_no_longer_than_allowed(
    served: Served, flavour: Flavour
) -> None:
    going = threading.Event()

    def tokens() -> str:
        going.wait(20)
        return "a.b.c"

    async with flavour.client(base_url=served.url, tokens=tokens, timeout=0.2) as client:
        with pytest.raises(errors.TimedOutError):
            await client.auth.whoami()
        going.set()


@cases("gives", [None, 3, "", "a b", "ünï", Token(Secret("line\nbreak"))])
async def test_function_without_a_token_raises_a_clear_error(
    flavour: Flavour, gives: object
) -> None:
    async with flavour.client(tokens=lambda: gives) as client:
        with pytest.raises(errors.ConfigurationError) as raised:
            await client.auth.whoami()
    assert "break" not in str(raised.value)


async def test_function_that_fails_is_a_token_that_was_not_got(flavour: Flavour) -> None:
    def tokens() -> str:
        raise KeyError("secret-of-the-vault")

    async with flavour.client(tokens=tokens) as client:
        with pytest.raises(errors.TokenRefreshError, match="KeyError") as raised:
            await client.auth.whoami()
    assert "secret-of-the-vault" not in str(raised.value)
    assert isinstance(raised.value.__cause__, KeyError)


async def test_traceback_of_a_token_error_has_its_message_once(flavour: Flavour) -> None:
    async with flavour.client(tokens=lambda: "") as client:
        with pytest.raises(errors.ConfigurationError) as raised:
            await client.auth.whoami()
    shown = "".join(traceback.format_exception(raised.value))
    assert shown.count(str(raised.value)) == 1


async def test_token_may_have_a_line_break_at_its_end(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour
) -> None:
    async with flavour.client(
        base_url=served.url, tokens=lambda: f"{endpoint._mint()}\n"
    ) as client:
        assert (await client.auth.whoami()).id == "olivia"


async def test_running_program_does_not_restore_a_signed_out_session(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "token")
    async with flavour.client(
        base_url=served.url, tokens=refreshing(endpoint, store=store)
    ) as client:
        await client.auth.whoami()
        store.clear()
        served.service.clock.advance(hours=2)
        with pytest.raises(errors.TokenRefreshError, match="signed out") as raised:
            await client.auth.whoami()
    assert raised.value.code == "signed_out"
    assert store.load() is None


async def test_given_token_is_used_if_the_stored_one_is_invalid(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "token")
    store.save(Token(Secret("old"), time.time() - 1, Secret("dead"), 3600.0))
    async with flavour.client(
        base_url=served.url, tokens=refreshing(endpoint, store=store)
    ) as client:
        assert (await client.auth.whoami()).id == "olivia"


async def test_token_of_one_issuer_is_not_sent_to_another(
    served: Served, endpoint: TokenEndpoint, flavour: Flavour, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "token")
    store.save(
        Token(
            Secret("old"),
            time.time() - 1,
            Secret("of another"),
            3600.0,
            "https://login.example.com",
            "cli",
        )
    )
    tokens = refreshing(endpoint, store=store, refresh_token=None)
    async with flavour.client(base_url=served.url, tokens=tokens) as client:
        with pytest.raises(errors.ConfigurationError, match="sign in"):
            await client.auth.whoami()
    assert endpoint.grants == []

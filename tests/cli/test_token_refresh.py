"""Commands that cannot refresh the token: message and exit code."""

from collections.abc import AsyncIterator

import pytest

from tenantry_cli.api_command import failure_of
from tenantry_cli.client_configuration import ClientConfiguration, ServiceOptions
from tenantry_sdk import errors
from tests.cli.command_support import Home
from tests.cli.fake_provider import (
    GOOD,
    TOKEN,
    WHOAMI,
    FakeProvider,
    Reply,
    fake_provider,
    signed_in,
)

ENDED = "Your sign-in has ended."
SIGN_IN = "Sign in again: tenantry login"


@pytest.fixture
async def provider(home: Home) -> AsyncIterator[FakeProvider]:
    """An identity provider and a service, with a stored sign-in whose token has expired."""
    async with fake_provider() as running:
        signed_in(home, running.url, running.url, ends_in=-1)
        yield running


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (503, "temporarily_unavailable", 6),
        (500, "server_error", 6),
        (429, "slow_down", 6),
        (400, "invalid_request", 1),
        (400, "invalid_grant", 4),
        (401, "invalid_client", 4),
    ],
)
async def test_error_of_the_provider(
    home: Home, provider: FakeProvider, status: int, error: str, code: int
) -> None:
    provider.answer(TOKEN, Reply(status, {"error": error}))
    done = await home.run("whoami")
    assert done.code == code
    assert (ENDED in done.err) is (SIGN_IN in done.err) is (code == 4)


async def test_sign_out_during_the_refresh(home: Home, provider: FakeProvider) -> None:
    provider.answer(TOKEN, Reply(200, GOOD))
    provider.answer(WHOAMI, Reply(401, {"code": "token_expired", "detail": "It has expired."}))
    provider.on_request[WHOAMI] = (home.token_folder / "default" / "session.json").unlink
    done = await home.run("whoami")
    assert done.code == 4
    assert "the user signed out" in done.err
    assert SIGN_IN in done.err


async def test_folder_that_cannot_be_written(home: Home, provider: FakeProvider) -> None:
    (home.token_folder / "default" / "token.json.lock").mkdir()
    done = await home.run("whoami")
    assert done.code == 1
    assert "token.json.lock cannot be opened" in done.err
    assert "ign in" not in done.err
    assert provider.asked == []


def test_token_timeout_does_not_blame_the_address(home: Home) -> None:
    signed_in(home, "https://accounts.example.com", "https://login.example.com", ends_in=-1)
    target = ClientConfiguration(ServiceOptions(), home.values).target()
    failure = failure_of(errors.TokenTimedOutError("A token is still being fetched."), target)
    assert (failure.exit_code, failure.next_step) == (6, "Try again in a moment.")

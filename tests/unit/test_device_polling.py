"""When the device flow polls for the token, and what a response means (RFC 8628, 3.5)."""

import pytest

from tenantry.cli.api_client import WaitTimes
from tenantry.cli.output import NOT_AUTHENTICATED, CommandError
from tenantry.cli.sign_in_flows import CODE_EXPIRED, DevicePolling
from tenantry.cli.sign_in_provider import ProviderResponse

GOOD = ProviderResponse(200, {"access_token": "a", "token_type": "bearer", "expires_in": 60, "refresh_token": "r"})


def begin(interval: float, ends: float, message: str = CODE_EXPIRED) -> DevicePolling:
    """Polling with the wait times of a command."""
    return DevicePolling(interval, ends, message, WaitTimes().poll)


def error_response(error: str) -> ProviderResponse:
    return ProviderResponse(400, {"error": error})


def test_pending_authorization_keeps_the_interval() -> None:
    polling = begin(5, ends=100)
    assert polling.token(error_response("authorization_pending")) is None
    assert polling.wait(0) == 5


def test_slow_down_adds_five_seconds_permanently() -> None:
    polling = begin(5, ends=100)
    for expected in (10, 15):
        assert polling.token(error_response("slow_down")) is None
        assert polling.wait(0) == expected


def test_failing_provider_is_polled_less_and_less_often() -> None:
    polling = begin(5, ends=1000)
    assert polling.token(ProviderResponse(503, {})) is None
    polling.slow_down()
    assert polling.wait(0) == 20
    for _ in range(9):
        polling.slow_down()
    assert polling.wait(0) == 60


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (503, None),
        (503, "temporarily_unavailable"),
        (400, "temporarily_unavailable"),
        (500, "server_error"),
        (400, "server_error"),
        (502, "invalid_grant"),
        (429, None),
        (429, "too_many_requests"),
    ],
)
def test_temporary_error_is_no_denial(status: int, error: str | None) -> None:
    polling = begin(5, ends=1000)
    assert polling.token(ProviderResponse(status, {} if error is None else {"error": error})) is None
    assert polling.wait(0) == 10


@pytest.mark.parametrize("interval", [0, -1, 0.1])
def test_interval_has_a_minimum(interval: float) -> None:
    assert begin(interval, ends=100).wait(0) == 1


def test_it_polls_once_even_if_the_timeout_is_shorter() -> None:
    polling = begin(5, ends=4, message="Timed out.")
    assert polling.wait(0) == 4
    with pytest.raises(CommandError, match="Timed out") as caught:
        polling.wait(4)
    assert caught.value.code == NOT_AUTHENTICATED


def test_it_ends_when_the_code_expires() -> None:
    polling = begin(5, ends=100)
    assert polling.wait(94) == 5
    with pytest.raises(CommandError, match="expired"):
        polling.wait(95)


@pytest.mark.parametrize("error", ["access_denied", "expired_token", "invalid_grant", "invalid_client"])
def test_denial_ends_it(error: str) -> None:
    with pytest.raises(CommandError) as caught:
        begin(5, ends=100).token(error_response(error))
    assert caught.value.code == NOT_AUTHENTICATED


def test_it_returns_the_tokens() -> None:
    token = begin(5, ends=100).token(GOOD)
    assert token is not None
    assert (token.access_token.reveal(), token.lifetime) == ("a", 60)
    assert token.refresh_token is not None
    assert token.refresh_token.reveal() == "r"


@pytest.mark.parametrize(
    "response",
    [
        ProviderResponse(200, {}),
        ProviderResponse(200, {"access_token": "a", "token_type": "mac"}),
        ProviderResponse(200, {"access_token": 1, "token_type": "Bearer"}),
        ProviderResponse(302, GOOD.fields),
    ],
)
def test_malformed_token_response_is_rejected(response: ProviderResponse) -> None:
    with pytest.raises(CommandError):
        begin(5, ends=100).token(response)

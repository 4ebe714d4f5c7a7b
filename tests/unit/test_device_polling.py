"""When the device flow polls for the token, and what a response means (RFC 8628, 3.5)."""

import msgspec
import pytest

from tenantry.cli.api_command import WaitTimes
from tenantry.cli.oauth_client import CODE_EXPIRED, DevicePolling, ProviderResponse
from tenantry.cli.output import NOT_AUTHENTICATED, CommandError


def begin(interval: float, ends: float, message: str = CODE_EXPIRED) -> DevicePolling:
    """Polling with the wait times of a command."""
    return DevicePolling(interval, ends, message, WaitTimes().poll)


def error_response(error: str | None, status: int = 400) -> ProviderResponse:
    return ProviderResponse(status, b"" if error is None else msgspec.json.encode({"error": error}))


def test_pending_authorization_keeps_the_interval() -> None:
    polling = begin(5, ends=100)
    polling.refused(error_response("authorization_pending"))
    assert polling.wait(0) == 5


def test_slow_down_adds_five_seconds_permanently() -> None:
    polling = begin(5, ends=100)
    for expected in (10, 15):
        polling.refused(error_response("slow_down"))
        assert polling.wait(0) == expected


def test_failing_provider_is_polled_less_and_less_often() -> None:
    polling = begin(5, ends=1000)
    polling.refused(error_response(None, 503))
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
    polling.refused(error_response(error, status))
    assert polling.wait(0) == 10


@pytest.mark.parametrize("interval", [0, -1, 0.1])
def test_interval_has_a_minimum(interval: float) -> None:
    assert begin(interval, ends=100).wait(0) == 1


def test_it_polls_once_even_if_the_timeout_is_shorter() -> None:
    polling = begin(5, ends=4, message="Timed out.")
    assert polling.wait(0) == 4
    with pytest.raises(CommandError, match="Timed out") as caught:
        polling.wait(4)
    assert caught.value.exit_code == NOT_AUTHENTICATED


def test_it_ends_when_the_code_expires() -> None:
    polling = begin(5, ends=100)
    assert polling.wait(94) == 5
    assert polling.wait(97) == 3
    with pytest.raises(CommandError, match="expired"):
        polling.wait(100)


@pytest.mark.parametrize("error", ["access_denied", "expired_token", "invalid_grant", "invalid_client"])
def test_denial_ends_it(error: str) -> None:
    with pytest.raises(CommandError) as caught:
        begin(5, ends=100).refused(error_response(error))
    assert caught.value.exit_code == NOT_AUTHENTICATED

"""When the device flow polls again, and what a response means (RFC 8628, 3.5)."""

import msgspec
import pytest

from tenantry.cli.oauth_client import ProviderResponse, next_interval
from tenantry.cli.output import NOT_AUTHENTICATED, CommandError


def error_response(error: str | None, status: int = 400) -> ProviderResponse:
    return ProviderResponse(status, b"" if error is None else msgspec.json.encode({"error": error}))


def test_pending_authorization_keeps_the_interval() -> None:
    assert next_interval(5, error_response("authorization_pending")) == 5


def test_slow_down_adds_five_seconds() -> None:
    assert next_interval(5, error_response("slow_down")) == 10


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
def test_temporary_error_doubles_the_interval(status: int, error: str | None) -> None:
    assert next_interval(5, error_response(error, status)) == 10


@pytest.mark.parametrize("error", ["slow_down", "server_error"])
def test_interval_is_a_minute_at_most(error: str) -> None:
    assert next_interval(59, error_response(error)) == 60


@pytest.mark.parametrize("error", ["access_denied", "expired_token", "invalid_grant", "invalid_client"])
def test_denial_ends_it(error: str) -> None:
    with pytest.raises(CommandError) as caught:
        next_interval(5, error_response(error))
    assert caught.value.exit_code == NOT_AUTHENTICATED

"""What programs that sign users in get from the SDK."""

import contextlib
import json
import socket

import pytest

from tenantry_sdk import RefreshToken, Secret, errors, oauth

GRANT = RefreshToken(issuer="https://login.example", client_id="cli")


def test_unreachable_identity_provider_is_a_failed_connection() -> None:
    with (
        contextlib.closing(oauth.IdentityProviderClient(timeout=5)) as client,
        pytest.raises(errors.ConnectionFailedError, match=r"http://127\.0\.0\.1:1 does not answer"),
    ):
        client.request("http://127.0.0.1:1")


def test_identity_provider_that_sends_nothing_times_out() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        contextlib.closing(oauth.IdentityProviderClient(timeout=0.1)) as client,
        pytest.raises(errors.TimedOutError, match=r"within 0\.1 s"),
    ):
        client.request(f"http://127.0.0.1:{silent.getsockname()[1]}/token", {"grant_type": "a"})


def test_tokens_are_bound_to_the_issuer_and_client_of_the_grant() -> None:
    content = json.dumps({"access_token": "a", "refresh_token": "r", "token_type": "Bearer"})
    token = oauth.read_token(GRANT, 200, content.encode())
    assert (token.access_token, token.refresh_token) == (Secret("a"), Secret("r"))
    assert (token.issuer, token.client_id) == ("https://login.example", "cli")


def test_response_without_a_token_says_why() -> None:
    content = b'{"error": "invalid_grant", "error_description": "expired"}'
    with pytest.raises(errors.TokenRefreshError, match="400") as raised:
        oauth.read_token(GRANT, 400, content)
    assert raised.value.code == "invalid_grant"


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("https://login.example/", "https://login.example"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
    ],
)
def test_address_that_may_receive_credentials_is_returned(address: str, found: str) -> None:
    assert oauth.checked_address(address, "--issuer") == found


def test_address_without_encryption_is_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match=r"^--issuer: .* must be https"):
        oauth.checked_address("http://login.example", "--issuer")
    assert oauth.checked_address("http://login.example", "", allow_http=True)

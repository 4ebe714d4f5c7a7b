"""The development identity provider's signing key, and the tokens that it signs."""

from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from tenantry_devkit.demo.companion import Companion, signing_key_path
from tenantry_devkit.identity_tokens import TokenIssuer, load_or_create_signing_key
from tests.support.sign_in import ADA, AUDIENCE, CLIENT_ID, Clock, sign_in


def test_minted_token_lives_as_long_as_asked_and_has_the_scope_asked() -> None:
    key = ECKey.generate_key("P-256")
    tokens = TokenIssuer(key, "http://127.0.0.1:9", AUDIENCE, CLIENT_ID, Clock())
    token = tokens.access_token(ADA, lifetime=timedelta(minutes=5), scope="projects:read")
    decoded = jwt.decode(token, key, algorithms=["ES256"])
    assert decoded.header == {"alg": "ES256", "typ": "at+jwt", "kid": key.thumbprint()}
    assert decoded.claims["exp"] - decoded.claims["iat"] == 300
    assert decoded.claims["scope"] == "projects:read"


def test_new_signing_key_is_readable_by_its_owner_alone_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "key.pem"
    first = load_or_create_signing_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["key.pem"]
    assert load_or_create_signing_key(path).thumbprint() == first.thumbprint()


def test_ec_signing_key_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    key = ECKey.generate_key("P-256")
    path.write_bytes(key.as_pem(private=True))
    assert load_or_create_signing_key(path).thumbprint() == key.thumbprint()


@pytest.mark.parametrize(
    "content",
    [b"", b"no key", ECKey.generate_key("P-384").as_pem(private=True)],
    ids=["empty", "no key", "P-384"],
)
def test_file_without_a_usable_key_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = signing_key_path(tmp_path)
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"identity-provider\.pem holds no RSA or P-256 private key"
    ):
        load_or_create_signing_key(path)


def test_provider_without_a_client_secret_is_for_public_clients_alone(tmp_path: Path) -> None:
    path = signing_key_path(tmp_path)
    path.write_bytes(ECKey.generate_key("P-256").as_pem(private=True))
    with (
        Companion(tmp_path, users=[ADA], audience=AUDIENCE, client_id=CLIENT_ID) as companion,
        httpx2.Client(base_url=companion.http_url, verify=False) as http,
    ):
        metadata = http.get("/.well-known/openid-configuration").json()
        tokens = sign_in(http)

    assert metadata["token_endpoint_auth_methods_supported"] == ["none"]
    assert metadata["id_token_signing_alg_values_supported"] == ["ES256"]
    assert urlsplit(companion.issuer).hostname == "127.0.0.1"
    assert tokens["id_token"].count(".") == 2

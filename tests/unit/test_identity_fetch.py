"""Which addresses of an identity provider may be asked."""

import pytest

from tenantry.integrations.http_client import is_secure


@pytest.mark.parametrize(
    "url",
    [
        "https://issuer.example",
        "http://127.0.0.1:9000/jwks",
        "http://127.8.0.1",
        "http://[::1]:80/",
        "http://localhost",
    ],
)
def test_https_and_loopback_are_secure(url: str) -> None:
    assert is_secure(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example",
        "http://10.0.0.1",
        "http://127.0.0.1.issuer.example",
        "http://localhost.issuer.example",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "https://",
        "https:///jwks",
        "/jwks",
        "",
        "https://[::1",
        "https://exam\x00ple",
    ],
)
def test_all_else_is_not(url: str) -> None:
    assert not is_secure(url)


def test_plain_http_can_be_allowed() -> None:
    assert is_secure("http://issuer.internal", allow_http=True)

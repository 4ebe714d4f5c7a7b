"""The address at which this machine asks a service."""

import pytest

from tenantry.common.http import local_origin


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1", "http://127.0.0.1:3001"),
        ("0.0.0.0", "http://127.0.0.1:3001"),
        ("::", "http://[::1]:3001"),
        ("2001:db8::7", "http://[2001:db8::7]:3001"),
        ("localhost", "http://localhost:3001"),
    ],
)
def test_origin_follows_the_listening_address(host: str, origin: str) -> None:
    assert local_origin(host, 3001) == origin

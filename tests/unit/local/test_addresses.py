"""Addresses of webhook endpoints, as users type them."""

import pytest

from tenantry.api import webhooks
from tenantry_devkit.local.endpoint import WEBHOOK_PATH, origin_of, webhook_address
from tests.support.cases import cases


@cases(
    ("text", "address"),
    [
        ("4000", f"http://127.0.0.1:4000{WEBHOOK_PATH}"),
        ("localhost:4000", f"http://localhost:4000{WEBHOOK_PATH}"),
        ("localhost:4000/hook", "http://localhost:4000/hook"),
        ("https://app.example/hook?a=b#c", "https://app.example/hook?a=b"),
        ("http://[::1]:4000", f"http://[::1]:4000{WEBHOOK_PATH}"),
        ("http://127.0.0.1:4000/", "http://127.0.0.1:4000/"),
    ],
)
def test_address_may_be_short(text: str, address: str) -> None:
    assert webhook_address(text) == address


@cases(
    "text",
    ["", "ftp://x", "http://", ":4000", "70000", "0", "http://x:y", "http://[", "http://me:it@x"],
)
def test_malformed_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        webhook_address(text)


def test_origin_of_an_address() -> None:
    assert origin_of("http://[::1]:4000/x?y") == "http://[::1]:4000"


def test_path_is_that_of_the_service() -> None:
    assert WEBHOOK_PATH == webhooks.PATH

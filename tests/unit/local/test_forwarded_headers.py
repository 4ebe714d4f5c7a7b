"""Headers that ``tenantry listen`` adds to the requests that it forwards."""

import pytest

from tenantry_devkit.local.endpoint import parse_headers
from tests.support.cases import cases

SECRET = "svc_live_of_nobody"


@cases(
    ("texts", "headers"),
    [
        ((), []),
        (("X-Tunnel:1",), [("X-Tunnel", "1")]),
        (("X-A: 1, X-B:  two words ",), [("X-A", "1"), ("X-B", "two words")]),
        (("X-A:1", "X-A:2"), [("X-A", "1"), ("X-A", "2")]),
        (('"Accept: a/b, c/d",X-B:2',), [("Accept", "a/b, c/d"), ("X-B", "2")]),
        (
            ("Authorization: Basic YTpi", "Host: app.example:8080"),
            [
                ("Authorization", "Basic YTpi"),
                ("Host", "app.example:8080"),
            ],
        ),
    ],
)
def test_pairs_are_separated_by_commas_or_repeated(
    texts: tuple[str, ...], headers: list[tuple[str, str]]
) -> None:
    assert parse_headers(texts) == headers


@cases(
    "text",
    [
        "X-A",
        "",
        ",",
        "X-A:1,",
        ": 1",
        "X A: 1",
        "X-A : 1",
        "X-Ä: 1",
        "X-A:",
        "X-A: ",
        "X-A: ü",
        "X-A: a\r\nX-B: 1",
        "X-A: a\x00",
        "X-A\n: 1",
        'X-A: 1,"X-B',
        "x" * 300 + ": 1",
    ],
)
def test_malformed_headers_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_headers([text])


@cases(
    "name",
    [
        "Stripe-Signature",
        "provider-signature",
        "Content-Type",
        "CONTENT-LENGTH",
        "Content-Encoding",
        "Transfer-Encoding",
        "Connection",
        "Upgrade",
        "Expect",
        "Proxy-Authorization",
    ],
)
def test_headers_of_the_relay_and_of_the_connection_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} cannot be set") as caught:
        parse_headers([f"{name}: {SECRET}"])
    assert SECRET not in str(caught.value)


@cases("text", [SECRET, f"X-A: {SECRET}\x01", f"X A: {SECRET}"])
def test_messages_repeat_no_values(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_headers([text])
    assert SECRET not in str(caught.value)

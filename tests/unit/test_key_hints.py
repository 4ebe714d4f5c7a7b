"""What people know of a key, and which keys it means."""

import pytest

from tenantry.domain.api_keys import KeyHint, find_key_hint, is_key_like

BOTH_MODES = ("svc_live_abcd", "svc_test_abcd")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("key_01975c3A", KeyHint(key_id="key_01975c3A")),
        ("AbCd", KeyHint(starts=BOTH_MODES, last4="abcd", either=True)),
        ("svc_live_AbCd", KeyHint(starts=("svc_live_abcd",))),
        ("svc_test_AbCd...", KeyHint(starts=("svc_test_abcd",))),
        ("svc_live_AbCd...WxYz", KeyHint(starts=("svc_live_abcd",), last4="wxyz")),
        ("AbCd\N{HORIZONTAL ELLIPSIS}WxYz", KeyHint(starts=BOTH_MODES, last4="wxyz")),
        ("...WxYz", KeyHint(last4="wxyz")),
    ],
)
def test_shown_characters_mean_a_key(text: str, hint: KeyHint) -> None:
    assert find_key_hint(text) == hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "...",
        "abc",
        "abcde",
        "svc_live_",
        "svc_live_abc",
        "cus_abcd",
        "ada@acme.example",
        "ab%d",
        "ab_d",
        "key_",
        "key_\0",
    ],
)
def test_other_texts_mean_no_key(text: str) -> None:
    assert find_key_hint(text) is None


def test_secret_is_told_from_its_shown_characters() -> None:
    assert is_key_like("svc_live_" + "a" * 49)
    assert not is_key_like("svc_live_AbCd...WxYz")

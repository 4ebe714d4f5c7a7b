"""What people know of a key, and which keys it means."""

import pytest

from tenantry.domain.api_keys import DEFAULT_FORMAT, KeyFormat, KeyHint
from tenantry.domain.errors import ValidationError
from tests.support.cases import cases

BOTH_MODES = ("svc_live_abcd", "svc_test_abcd")


@cases(
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
    assert DEFAULT_FORMAT.find_hint(text) == hint


@cases(
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
    assert DEFAULT_FORMAT.find_hint(text) is None


def test_secret_is_told_from_its_shown_characters() -> None:
    assert DEFAULT_FORMAT.is_secret("svc_live_" + "a" * 49)
    assert not DEFAULT_FORMAT.is_secret("svc_live_AbCd...WxYz")


ACME = KeyFormat("acme", ["old0", "key"])


def test_shown_digits_may_follow_every_accepted_prefix() -> None:
    hint = ACME.find_hint("AbCd")
    assert hint is not None
    assert set(hint.starts) == {
        f"{prefix}_{mode}_abcd"
        for prefix in ("acme", "old0", "key", "svc")
        for mode in ("live", "test")
    }


@cases("prefix", ["acme", "old0", "svc", "key", "dropped"])
def test_shown_start_names_its_own_prefix(prefix: str) -> None:
    assert ACME.find_hint(f"{prefix}_live_AbCd...WxYz") == KeyHint(
        starts=(f"{prefix}_live_abcd",), last4="wxyz"
    )
    assert ACME.find_hint(f"{prefix}_test_AbCd") == KeyHint(starts=(f"{prefix}_test_abcd",))


@cases("prefix", ["acme", "old0", "svc"])
def test_secret_with_an_accepted_prefix_belongs_into_no_search(prefix: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ACME.check_search(f"{prefix}_live_" + "a" * 22)
    assert "aaa" not in str(refused.value)
    ACME.check_search(f"{prefix}_live_AbCd...WxYz")


@cases("prefix", ["acme", "old0", "svc"])
def test_search_keeps_only_the_shown_characters_of_a_secret(prefix: str) -> None:
    shown = f"{prefix}_test_AbCd...WxYz"
    assert ACME.without_secret(f"{prefix}_test_AbCd{'a' * 41}WxYz") == shown
    assert ACME.without_secret(f"{prefix}_test_AbCd{'a' * 41}_") == f"{prefix}_test_AbCd...aaa_"
    for text in (shown, "CI deploys", "dropped_live_" + "a" * 49):
        assert ACME.without_secret(text) == text

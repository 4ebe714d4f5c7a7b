"""The form of a key's secret, and what is stored and shown of it."""

import string
import zlib

import pytest

from tenantry.domain.api_keys import (
    DEFAULT_FORMAT,
    RANDOM_BYTES,
    KeyFormat,
    Pepper,
    is_prefix,
    shown_parts,
)
from tenantry.domain.permissions import Mode
from tests.support.cases import cases

SECRET = DEFAULT_FORMAT.compose(Mode.LIVE, bytes(range(RANDOM_BYTES)))


def with_checksum(body: bytes) -> bytes:
    """These bytes with their true CRC-32 in six base62 digits behind them."""
    digits, number, out = (
        string.digits + string.ascii_uppercase + string.ascii_lowercase,
        zlib.crc32(body),
        "",
    )
    for _ in range(6):
        number, digit = divmod(number, 62)
        out = digits[digit] + out
    return body + out.encode()


@pytest.mark.parametrize("mode", Mode)
def test_secret_names_its_mode_and_is_58_base62_characters_long(mode: Mode) -> None:
    secret = DEFAULT_FORMAT.compose(mode, b"\xff" * RANDOM_BYTES)
    assert secret.startswith(f"svc_{mode}_")
    assert len(secret) == 58
    assert secret[9:].isalnum()
    assert secret.isascii()


@cases("random", [b"\x00" * RANDOM_BYTES, b"\xff" * RANDOM_BYTES, bytes(range(RANDOM_BYTES))])
def test_made_secret_is_well_formed(random: bytes) -> None:
    assert DEFAULT_FORMAT.is_well_formed(DEFAULT_FORMAT.compose(Mode.TEST, random).encode())


def test_different_random_bytes_give_different_secrets() -> None:
    assert DEFAULT_FORMAT.compose(Mode.LIVE, b"\x00" * 31 + b"\x01") != DEFAULT_FORMAT.compose(
        Mode.LIVE, b"\x00" * 32
    )


@cases("length", [0, 31, 33])
def test_secret_is_made_of_32_random_bytes_only(length: int) -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        DEFAULT_FORMAT.compose(Mode.LIVE, bytes(length))


def test_changing_one_character_breaks_the_form() -> None:
    for position in range(58):
        other = "1" if SECRET[position] != "1" else "2"
        changed = SECRET[:position] + other + SECRET[position + 1 :]
        assert not DEFAULT_FORMAT.is_well_formed(changed.encode()), changed


MALFORMED = {
    "empty": b"",
    "prefix alone": b"svc_live_",
    "one character short": SECRET[:-1].encode(),
    "one character long": SECRET.encode() + b"0",
    "newline behind": SECRET.encode() + b"\n",
    "upper-case prefix": b"SVC_LIVE_" + SECRET[9:].encode(),
    "unknown mode": with_checksum(b"svc_prod_" + b"0" * 43),
    "no base62, true checksum": with_checksum(b"svc_live_" + b"0" * 42 + b"-"),
    "control character, true checksum": with_checksum(b"svc_live_" + b"0" * 42 + b"\n"),
    "NUL, true checksum": with_checksum(b"svc_live_" + b"0" * 42 + b"\x00"),
    "not ASCII, true checksum": with_checksum(b"svc_live_" + b"0" * 42 + b"\xff"),
    "not ASCII in the checksum": SECRET[:-2].encode() + "é".encode(),
}


@cases("secret", MALFORMED.values(), ids=MALFORMED)
def test_anything_else_is_not_well_formed(secret: bytes) -> None:
    assert not DEFAULT_FORMAT.is_well_formed(secret)


def test_digest_depends_on_the_pepper_and_does_not_hold_the_secret() -> None:
    one, other = (
        Pepper(b"pepper one").digest(SECRET.encode()),
        Pepper(b"pepper two").digest(SECRET.encode()),
    )
    assert one != other
    assert len(one) == 32


def test_shown_are_the_first_13_and_the_last_4_characters() -> None:
    assert shown_parts(SECRET) == (SECRET[:13], SECRET[-4:])


LONGEST = "abcdefgh01234567"
ACME = KeyFormat("acme", ["old"])


@pytest.mark.parametrize("mode", Mode)
def test_prefix_of_a_deployment_leaves_the_rest_of_the_form(mode: Mode) -> None:
    secret = KeyFormat(LONGEST).compose(mode, bytes(range(RANDOM_BYTES)))
    start, digits = secret[: len(LONGEST) + 6], secret[len(LONGEST) + 6 :]
    assert start == f"{LONGEST}_{mode}_"
    assert len(digits) == 49
    assert with_checksum(secret[:-6].encode()) == secret.encode()
    assert shown_parts(secret) == (f"{start}{digits[:4]}", digits[-4:])


@cases("prefix", ["acme", "old", "svc"])
def test_keys_with_the_prefix_a_former_one_and_svc_are_accepted(prefix: str) -> None:
    secret = KeyFormat(prefix).compose(Mode.LIVE, bytes(32)).encode()
    assert ACME.is_well_formed(secret)


@cases("prefix", ["other", "acm", "acmee", "Acme", "acme_live", "", "acme_live_svc"])
def test_keys_with_another_prefix_are_not(prefix: str) -> None:
    assert not ACME.is_well_formed(with_checksum(f"{prefix}_live_".encode() + b"0" * 43))


def test_key_under_another_prefix_has_no_valid_checksum() -> None:
    secret = ACME.compose(Mode.LIVE, bytes(32)).encode()
    assert not ACME.is_well_formed(b"old" + secret[4:])


@cases("text", ["ab", "0a", "acme", LONGEST])
def test_prefix_is_2_to_16_lower_case_letters_and_digits(text: str) -> None:
    assert is_prefix(text)


@cases(
    "text",
    [
        "",
        "a",
        LONGEST + "8",
        "Acme",
        "a-b",
        "a_b",
        "a b",
        "\N{LATIN SMALL LETTER E WITH ACUTE}x",
        "ab\n",
    ],
)
def test_anything_else_is_no_prefix(text: str) -> None:
    assert not is_prefix(text)

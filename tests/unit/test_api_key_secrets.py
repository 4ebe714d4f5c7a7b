"""The form of a key's secret, and what is stored and shown of it."""

import string
import zlib

import pytest

from tenantry.domain.api_keys import (
    RANDOM_BYTES,
    Pepper,
    compose_secret,
    is_well_formed,
    shown_parts,
)
from tenantry.domain.permissions import Mode

SECRET = compose_secret(Mode.LIVE, bytes(range(RANDOM_BYTES)))


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
    secret = compose_secret(mode, b"\xff" * RANDOM_BYTES)
    assert secret.startswith(f"svc_{mode}_")
    assert len(secret) == 58
    assert secret[9:].isalnum()
    assert secret.isascii()


@pytest.mark.parametrize(
    "random", [b"\x00" * RANDOM_BYTES, b"\xff" * RANDOM_BYTES, bytes(range(RANDOM_BYTES))]
)
def test_made_secret_is_well_formed(random: bytes) -> None:
    assert is_well_formed(compose_secret(Mode.TEST, random).encode())


def test_different_random_bytes_give_different_secrets() -> None:
    assert compose_secret(Mode.LIVE, b"\x00" * 31 + b"\x01") != compose_secret(
        Mode.LIVE, b"\x00" * 32
    )


@pytest.mark.parametrize("length", [0, 31, 33])
def test_secret_is_made_of_32_random_bytes_only(length: int) -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        compose_secret(Mode.LIVE, bytes(length))


@pytest.mark.parametrize("position", range(58))
def test_changing_one_character_breaks_the_form(position: int) -> None:
    other = "1" if SECRET[position] != "1" else "2"
    assert not is_well_formed((SECRET[:position] + other + SECRET[position + 1 :]).encode())


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


@pytest.mark.parametrize("secret", MALFORMED.values(), ids=MALFORMED)
def test_anything_else_is_not_well_formed(secret: bytes) -> None:
    assert not is_well_formed(secret)


def test_digest_depends_on_the_pepper_and_does_not_hold_the_secret() -> None:
    one, other = (
        Pepper(b"pepper one").digest(SECRET.encode()),
        Pepper(b"pepper two").digest(SECRET.encode()),
    )
    assert one != other
    assert len(one) == 32


def test_shown_are_the_first_13_and_the_last_4_characters() -> None:
    assert shown_parts(SECRET) == (SECRET[:13], SECRET[-4:])

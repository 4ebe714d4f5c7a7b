"""Keys that another system made, of which only a hash is known: the hashes and the pattern."""

import base64
import binascii
import hashlib
import re
from enum import StrEnum
from typing import Final

from tenantry.domain.errors import ValidationError

MAX_IMPORTED_KEYS: Final = 1000
"""The most keys of one import."""
LONGEST_IMPORTED_KEY: Final = 200
"""In characters, of which each is ASCII."""
LONGEST_PATTERN: Final = 200
LONGEST_START: Final = 13
LONGEST_LAST4: Final = 4
MAX_STEPS: Final = 1_000_000
"""How often a pattern's matching may try one of its parts: enough for two parts of any length, too
few for three.
"""
_SHOWN_TEXT: Final = re.compile("[!-~]*")
_LONGEST_DIGEST: Final = 128
_ANY_NUMBER: Final = LONGEST_IMPORTED_KEY + 1
_PASSWORD_HASHES: Final = (
    ("bcrypt", re.compile(r"\$2[abxy]?\$|bcrypt")),
    ("argon2", re.compile(r"\$?argon2")),
    ("scrypt", re.compile(r"\$?scrypt|\$7\$")),
    ("PBKDF2", re.compile(r"\$?pbkdf2", re.IGNORECASE)),
    ("sha-crypt", re.compile(r"\$[56]\$")),
)
_HASHED_GROUP: Final = "secret"
_PATTERN_PART: Final = re.compile(
    r"""
    (?P<opens> \( (?:\?: | \?P<secret> )? )
  | (?P<closes> \) ) (?P<optional> \? )?
  | (?P<bar> \| )
  | (?: \A \^ | \$ \Z )
  | (?: \\[dw] | \\[^0-9A-Za-z] | \[ \^? (?: \\. | [^][\\] )+ \] | [^][\\(){}*+?|^$] )
    (?: (?P<many> [*+] ) | (?P<maybe> \? ) | \{ (?P<least> \d{1,3} ) (?P<range> , (?P<most> \d{1,3} )? )? \} )?
    """,
    re.VERBOSE,
)
"""A part of a pattern: of a group that is neither nested nor repeated, a character with its number,
or the mark of an end, which says nothing: a key is matched as a whole.
"""


class HashAlgorithm(StrEnum):
    """How another system hashes its keys, or the part of them that the pattern names, without a
    salt.
    """

    SHA256 = "sha256"
    SHA512 = "sha512"

    @property
    def size(self) -> int:
        """The length of a hash in bytes."""
        return int(hashlib.new(self).digest_size)

    def hash(self, secret: bytes) -> bytes:
        return hashlib.new(self, secret).digest()


def read_algorithm(text: str) -> HashAlgorithm:
    """Read the name of an algorithm. Raises `ValidationError`."""
    _check_no_password_hash("algorithm", text)
    if text not in set(HashAlgorithm):
        raise ValidationError(("algorithm", f"must be {' or '.join(HashAlgorithm)}"))
    return HashAlgorithm(text)


def read_digest(algorithm: HashAlgorithm, text: str) -> bytes:
    """Read a hash in hex, base64 or base64url, with or without padding. Raises
    `ValidationError`.
    """
    _check_no_password_hash("digest", text)
    if "$" in text or ":" in text:
        raise ValidationError(
            ("digest", "must be the hash alone, without its algorithm or a salt before it")
        )
    found = _decode(text)
    if found is None:
        raise ValidationError(("digest", "is neither hex, base64 nor base64url"))
    if len(found) != algorithm.size:
        raise ValidationError(
            ("digest", f"must have {algorithm.size} bytes for {algorithm}; it has {len(found)}")
        )
    if found == algorithm.hash(b""):
        raise ValidationError(("digest", "is the hash of an empty text, which no key matches"))
    return found


def _check_no_password_hash(location: str, text: str) -> None:
    for name, form in _PASSWORD_HASHES:
        if form.match(text):
            fault = (
                f"is of a password hash ({name}): checking a key by it would take each request about 100 ms. "
                "Only sha256 and sha512 can be imported: give the holder a new key"
            )
            raise ValidationError((location, fault))


def _decode(text: str) -> bytes | None:
    """Decode hex, which the length of a hash tells apart from the others, base64 or base64url."""
    if len(text) > _LONGEST_DIGEST or not text.isascii():
        return None
    try:
        if len(text) in {2 * algorithm.size for algorithm in HashAlgorithm}:
            return bytes.fromhex(text)
        unpadded = text.rstrip("=")
        padded = unpadded + "=" * (-len(unpadded) % 4)
        return base64.b64decode(padded.replace("-", "+").replace("_", "/"), validate=True)
    except (ValueError, binascii.Error):
        return None


def check_shown_parts(start: str, last4: str) -> None:
    """Raise `ValidationError` for first and last characters that show too much of a key, or that no
    key has.
    """
    for location, text, longest in ("start", start, LONGEST_START), ("last4", last4, LONGEST_LAST4):
        if len(text) > longest:
            raise ValidationError((location, f"must have at most {longest} characters"))
        if _SHOWN_TEXT.fullmatch(text) is None:
            raise ValidationError((location, "must be visible ASCII characters without spaces"))


def read_key_pattern(text: str) -> re.Pattern[bytes]:
    r"""Compile the pattern of imported keys. Raises `ValueError` with a sentence.

    A pattern whose matching could take long is refused, because any client can send a text that
    almost matches. Python's ``re`` then tries every way in which the pattern may match, and each
    alternative or number of repetitions multiplies the ways. So groups are neither repeated nor
    nested, and the ways by the number of parts are at most `MAX_STEPS`: a few milliseconds.

    A group named ``secret`` is the part that the other system hashes (`hashed_part`).
    """
    if len(text) > LONGEST_PATTERN:
        raise ValueError(f"is longer than {LONGEST_PATTERN} characters")
    if not text.isascii() or not text.isprintable():
        raise ValueError("must be of ASCII characters, as keys are")
    if _most_steps(text) > MAX_STEPS:
        raise ValueError(
            "can match in too many ways, so a client could keep a process busy: give most parts a fixed length, "
            "such as [0-9a-z]{32}"
        )
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error


def hashes_part(pattern: re.Pattern[bytes] | None) -> bool:
    """Whether the other system may hash a part of its keys."""
    return pattern is not None and _HASHED_GROUP in pattern.groupindex


def hashed_part(pattern: re.Pattern[bytes], key: bytes) -> bytes | None:
    """Return the part of a key whose hash the other system stores: the group named ``secret``, or
    the whole key where the pattern has none.

    Return None for a key that the pattern does not match, and where that part is empty: its hash
    would stand for any number of keys.
    """
    found = pattern.fullmatch(key)
    if found is None:
        return None
    part = found.groupdict().get(_HASHED_GROUP)
    return (key if part is None else part) or None


def _most_steps(pattern: str) -> int:
    """Return a bound on the steps in which a pattern is matched. Raises `ValueError` for a part
    that is not allowed.
    """
    parts = 0
    others = [0]  # the ways of the alternatives before this one, at each depth
    ways = [1]
    position = 0
    while position < len(pattern):
        part = _PATTERN_PART.match(pattern, position)
        if part is None or (part["opens"] and len(ways) > 1) or (part["closes"] and len(ways) == 1):
            raise ValueError(
                f"has a part that is not allowed, at character {position + 1}: use characters, [classes], . \\d \\w, "
                "repeated by * + ? {n} {m,n}, and groups (a|b) that are neither nested nor repeated"
            )
        position = part.end()
        parts += 1
        if part["opens"]:
            others.append(0)
            ways.append(1)
        elif part["bar"]:
            others[-1] += ways[-1]
            ways[-1] = 1
        elif part["closes"]:
            of_group = others.pop() + ways.pop()
            ways[-1] *= of_group + (part["optional"] is not None)
        else:
            ways[-1] *= _counts(part)
    return (others[0] + ways[0]) * parts


def _counts(part: re.Match[str]) -> int:
    """Return how many numbers of a character a part allows."""
    if part["many"]:
        return _ANY_NUMBER
    if part["maybe"]:
        return 2
    if part["range"]:
        most = int(part["most"] or LONGEST_IMPORTED_KEY)
        return max(1, min(most - int(part["least"]) + 1, _ANY_NUMBER))
    return 1

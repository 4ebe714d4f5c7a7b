"""The hashes of imported keys, and the patterns that they may match."""

import re
from typing import Final

import pytest

from tenantry.domain.api_keys import Pepper
from tenantry.domain.errors import ValidationError
from tenantry.domain.imported_keys import (
    HashAlgorithm,
    hashed_part,
    read_algorithm,
    read_digest,
    read_key_pattern,
)
from tests.support.cases import cases
from tests.support.imported_keys import old_key, spellings

PATTERNS: Final = {
    r"[A-Za-z0-9]{8}\.[A-Za-z0-9]{32}": "AbCd1234." + 32 * "x",
    r"[\w-]+\.[\w-]+": "a-b.c_d",
    r"[\w-]+\.[\w-]+|old_[0-9a-f]{32}": "old_" + 32 * "0",
    r"acme_live_[\w-]+\.[\w-]+": "acme_live_a.b",
    r"(?:sk|pk)_(live|test)_[A-Za-z0-9]{16,64}": "pk_test_" + 20 * "x",
    r"\w{8}\.\w{32}|key_\w+|[a-zA-Z]{64}": "key_x",
    r"acme-(?:old)?.{3}": "acme-abc",
    r"\[\d\]\\": "[1]\\",
    r"[^.]*": "anything",
    r"[\]a]{1,}": "a]a",
    r"^\d+\|(?P<secret>.+)$": "1|abc",
    r"^a\$": "a$",
}
REFUSED: Final = {
    "(a+)+": "not allowed, at character 5",
    "(a|b)*": "not allowed, at character 6",
    "((a))": "not allowed, at character 2",
    "a**": "not allowed, at character 3",
    "a+?": "not allowed, at character 3",
    "(?P<name>a)": "not allowed, at character 2",
    "a(?=b)": "not allowed, at character 3",
    r"(a)\1": "not allowed, at character 4",
    r"\bkey": "not allowed, at character 1",
    "a^key": "not allowed, at character 2",
    "key$a": "not allowed, at character 4",
    "^^key": "not allowed, at character 2",
    "(^key)": "not allowed, at character 2",
    "(key$)": "not allowed, at character 5",
    "(?P<Secret>a)": "not allowed, at character 2",
    "(?P<secret>(a+)+)": "not allowed, at character 12",
    "(?P<secret>a+)+": "not allowed, at character 15",
    "(?P<secret>a)(?P=secret)": "not allowed, at character 15",
    "(?P<secret>a)|(?P<secret>b)": "is not a regular expression: redefinition of group name",
    r"(?P<secret>\w*\w*\w*)": "too many ways",
    "[a": "not allowed, at character 1",
    "a)": "not allowed, at character 2",
    "(a": "is not a regular expression",
    "[z-a]": "is not a regular expression",
    "sch\N{LATIN SMALL LETTER U WITH DIAERESIS}ssel": "ASCII",
    "a\n": "ASCII",
    r"\w*\w*\w*": "too many ways",
    20 * "a?": "too many ways",
    20 * "(a|a)": "too many ways",
    r"(\w*|\w*)(\w*|\w*)": "too many ways",
    201 * "x": "longer than 200",
}


@pytest.mark.parametrize("algorithm", HashAlgorithm)
def test_every_spelling_of_a_hash_is_read(algorithm: HashAlgorithm) -> None:
    value = old_key(algorithm).hash
    assert {read_digest(algorithm, text) for text in spellings(value)} == {value}


@cases(
    "text",
    [
        "",
        "x",
        63 * "a",
        65 * "a",
        64 * "g",
        " " + 64 * "a",
        64 * "a" + "\n",
        64 * "\N{FULLWIDTH DIGIT ONE}",
        42 * "A",
        44 * "A",
        128 * "a",
        1000 * "a",
        43 * "A" + "==A",
        21 * "A" + "." + 21 * "A",
    ],
)
def test_other_texts_are_no_sha256(text: str) -> None:
    with pytest.raises(ValidationError):
        read_digest(HashAlgorithm.SHA256, text)


def test_algorithm_is_read_by_its_exact_name() -> None:
    assert [read_algorithm(each) for each in ("sha256", "sha512")] == list(HashAlgorithm)
    with pytest.raises(ValidationError):
        read_algorithm("sha-256")


@cases("pattern", PATTERNS)
def test_pattern_of_plain_parts_is_accepted(pattern: str) -> None:
    found = read_key_pattern(pattern)
    assert found == re.compile(pattern.encode())
    assert found.fullmatch(PATTERNS[pattern].encode())


@cases("pattern", REFUSED)
def test_pattern_that_may_take_long_or_that_re_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=re.escape(REFUSED[pattern])):
        read_key_pattern(pattern)


@cases(
    ("pattern", "key", "part"),
    [
        (r"\d+\|(?P<secret>.+)", "12|ab", "ab"),
        (r"\d+\|(?P<secret>.+)", "12|ab|c", "ab|c"),
        (r"\d+\|(?P<secret>.+)", "12|", None),
        (r"\d+\|(?P<secret>.+)", "|ab", None),
        (r"\d+\|(?P<secret>.*)", "12|", None),
        (r"(?P<secret>.*)", "", None),
        (r"\d+\|(?P<secret>\w+)|old_\w+", "old_ab", "old_ab"),
        (r"\d+(?P<secret>\|\w+)?", "12", "12"),
        (r".+\|.+", "12|ab", "12|ab"),
        (r".*", "", None),
    ],
)
def test_hash_covers_the_group_that_the_pattern_names_or_the_whole_key(
    pattern: str, key: str, part: str | None
) -> None:
    found = hashed_part(read_key_pattern(pattern), key.encode())
    assert found == (None if part is None else part.encode())


@pytest.mark.parametrize("algorithm", HashAlgorithm)
def test_hash_of_an_empty_text_is_refused(algorithm: HashAlgorithm) -> None:
    with pytest.raises(ValidationError) as refused:
        read_digest(algorithm, algorithm.hash(b"").hex())
    [(where, what)] = refused.value.faults
    assert (where, what) == ("digest", "is the hash of an empty text, which no key matches")


def test_digest_of_a_hash_is_not_that_of_a_key_of_the_same_bytes() -> None:
    pepper = Pepper(b"pepper")
    value = 32 * b"a"
    algorithms = [pepper.digest_of_hash(algorithm, value) for algorithm in HashAlgorithm]
    assert len({pepper.digest(value), *algorithms}) == 3

"""The test vectors that docs/reference/api-key-format.md publishes are what the code computes."""

import re
from pathlib import Path
from typing import Final, NamedTuple

from tenantry.domain.api_keys import DEFAULT_FORMAT, Pepper
from tenantry.domain.permissions import Mode
from tests.support.cases import cases

PAGE: Final = (Path(__file__).parents[2] / "docs" / "reference" / "api-key-format.md").read_text(
    "utf-8"
)
ROW: Final = re.compile(
    r"^\| (live|test) \| `([0-9a-f]{64})` \| `(\w+)` \| `([0-9a-f]{64})` \|$", re.MULTILINE
)


class Vector(NamedTuple):
    mode: Mode
    random: bytes
    secret: str
    digest: bytes


def _pepper() -> bytes:
    found = re.search(r"^Under the pepper `([^`]+)`", PAGE, re.MULTILINE)
    assert found is not None
    return found[1].encode()


VECTORS: Final = [
    Vector(Mode(mode), bytes.fromhex(random), secret, bytes.fromhex(hexadecimal))
    for mode, random, secret, hexadecimal in ROW.findall(PAGE)
]


def test_there_are_three_vectors_of_both_modes() -> None:
    assert len(VECTORS) == 3
    assert {vector.mode for vector in VECTORS} == set(Mode)


@cases("vector", VECTORS, ids=lambda vector: vector.secret)
def test_the_secret_is_made_of_the_random_bytes(vector: Vector) -> None:
    assert DEFAULT_FORMAT.compose(vector.mode, vector.random) == vector.secret


@cases("vector", VECTORS, ids=lambda vector: vector.secret)
def test_the_digest_is_that_of_the_secret(vector: Vector) -> None:
    assert Pepper(_pepper()).digest(vector.secret.encode()) == vector.digest


def test_the_published_pattern_finds_each_secret_and_no_more() -> None:
    found = re.search(r"^(\\bsvc_.*\\b)$", PAGE, re.MULTILINE)
    assert found is not None
    for vector in VECTORS:
        assert re.findall(found[1].replace("(live", "(?:live"), f"key={vector.secret};") == [
            vector.secret
        ]


def test_every_whole_key_on_the_page_is_one_that_the_code_would_accept() -> None:
    keys = set(re.findall(r"\bsvc_(?:live|test)_[0-9A-Za-z]{49}\b", PAGE))
    assert keys == {vector.secret for vector in VECTORS}
    assert all(DEFAULT_FORMAT.is_well_formed(key.encode()) for key in keys)

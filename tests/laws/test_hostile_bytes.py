"""The fuzz targets without a fuzzer: their seeds, which have earlier findings, and changes of them.

`bench.fuzz` runs them with a coverage-guided fuzzer.
"""

import logging
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.fuzz.catalog import NAMES, target
from bench.fuzz.target import Target

INPUTS: Final = 10 * settings().max_examples
PIECES: Final = (b"0", b"-1", b"9" * 20, b"1e999", b"\x00", b"\xff", b"\xed\xa0\x80")
Edit = tuple[int, int, bytes]
"""Where to replace, how many bytes, and by what."""


@pytest.fixture(autouse=True)
def nothing_logged() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def changed_seeds(one: Target) -> st.SearchStrategy[bytes]:
    """Seeds in which words, parts of other seeds and random bytes replace or follow others."""
    seeds = list(one.seeds())
    pieces = st.sampled_from([*PIECES, *one.words, *(seed[:64] for seed in seeds)])
    edits = st.tuples(st.integers(0, one.max_size), st.integers(0, 64), pieces | st.binary())
    return st.builds(changed, st.sampled_from(seeds), st.lists(edits, max_size=8))


def changed(seed: bytes, edits: list[Edit]) -> bytes:
    data = bytearray(seed)
    for place, length, piece in edits:
        start = place % (len(data) + 1)
        data[start : start + length] = piece
    return bytes(data)


@pytest.mark.parametrize("name", NAMES)
def test_parser_meets_its_requirements_for_every_input(name: str) -> None:
    one = target(name)
    for seed in one.seeds():
        one.check(seed)

    @settings(max_examples=INPUTS, derandomize=True)
    @given(changed_seeds(one))
    def check(data: bytes) -> None:
        one.check(data)

    check()

"""Inputs without a fuzzer: the seeds and random mutations of them, the same for the same random
seed.
"""

import random
from collections.abc import Iterator

from bench.fuzz.target import Target

_NUMBERS = (b"0", b"-1", b"9" * 20, b"1e999", b"\x00", b"\xff", b"\xed\xa0\x80")


def inputs(target: Target, number: int, seed: int = 0) -> Iterator[bytes]:
    """Yield the seeds, and so many mutations."""
    seeds = list(target.seeds())
    yield from seeds
    chance = random.Random(f"{target.name} {seed}")  # noqa: S311  # no secret
    for _ in range(number):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.choice((1, 1, 2, 3, 8))):
            _change(data, target, chance, seeds)
        yield bytes(data[: target.max_size])


def _change(data: bytearray, target: Target, chance: random.Random, seeds: list[bytes]) -> None:
    start = chance.randint(0, len(data))
    end = min(len(data), start + chance.choice((0, 1, 1, 2, 4, 16, 64)))
    match chance.randrange(7):
        case 0:
            del data[start:end]
        case 1:
            data[start:end] = chance.randbytes(end - start)
        case 2:
            data[start:end] = chance.choice((*target.words, *_NUMBERS))
        case 3:
            data[start:start] = chance.choice((*target.words, *_NUMBERS))
        case 4:
            data[start:start] = data[start:end] * chance.choice((1, 2, 20))
        case 5 if start < len(data):
            data[start] ^= 1 << chance.randrange(8)
        case _:
            other = chance.choice(seeds)
            cut = chance.randint(0, len(other))
            data[start:end] = other[cut : cut + 64]

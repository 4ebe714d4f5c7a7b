"""The bars of a chart, and what stands beside and below them."""

from collections.abc import Sequence
from typing import Final

_TO_TEN: Final = (1, 2, 4, 6, 8, 10)
_TENTHS: Final = (10, 12, 16, 20, 30, 40, 60, 80, 100)
_MOST_TEXTS: Final = 6
_NEAR_AN_END: Final = 5
"""Percent of the width: a text in the middle of such a bar would begin or end outside."""


def axis_top(most: int) -> int:
    """Return a round number that is at least ``most``: 1, or one that has a whole half."""
    tenth = 1
    while most > 100 * tenth:
        tenth *= 10
    tops = _TO_TEN if most <= _TO_TEN[-1] else [number * tenth for number in _TENTHS]
    return next(top for top in tops if top >= most)


def bar_paths(bars: Sequence[tuple[str, Sequence[int]]], top: int) -> list[str]:
    """Return a path for each series: its part of every bar, above those of the series before.

    A bar has 10 units of the width, and ``top`` is 100 units high. One path is a tenth of the text
    of a rectangle for each part: a page has up to 92 bars of seven parts.
    """
    paths: list[list[str]] = [[] for _ in (bars[0][1] if bars else ())]
    for place, (_, numbers) in enumerate(bars):
        below = 0
        for path, number in zip(paths, numbers, strict=True):
            base, below = _height(below, top), below + number
            height = round(_height(below, top) - base, 1)
            if number:
                path.append(f"M{place * 10 + 1} {round(100 - base, 1):g}v-{height:g}h8v{height:g}z")
    return ["".join(path) for path in paths]


def _height(number: int, top: int) -> float:
    return round(number / top * 100, 1)


def texts_below(bars: Sequence[tuple[str, object]]) -> list[tuple[str, float, str]]:
    """Return the texts of some bars, at equal distances: each with the middle of its bar, in
    percent of the width, and with the part of the text that is there, as ``text-anchor``.
    """
    distance = -(-len(bars) // _MOST_TEXTS) or 1
    places = range(0, len(bars), distance)
    return [_text_below(bars[place][0], (place + 0.5) / len(bars) * 100) for place in places]


def _text_below(text: str, middle: float) -> tuple[str, float, str]:
    if middle < _NEAR_AN_END:
        return text, 0.0, "start"
    if middle > 100 - _NEAR_AN_END:
        return text, 100.0, "end"
    return text, round(middle, 2), "middle"

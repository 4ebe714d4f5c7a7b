"""The chart of a soak: panels with one time axis, and a mark for each fault. Plain SVG, for light and dark grounds."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

_WIDTH: Final = 910
_LEFT: Final = 70
_RIGHT: Final = 880
_TOP: Final = 50
_PANEL: Final = 130
_GAP: Final = 62
_COLOURS: Final = 4
_TICKS: Final = 6
_STYLE: Final = """
  .page { fill: #ffffff }
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .axis { stroke: #8c959f; stroke-width: 1 } .grid { stroke: #d0d7de; stroke-width: 1; stroke-dasharray: 3 4 }
  .fault { stroke: #d0d7de; stroke-width: 1 } .line { fill: none; stroke-width: 2 }
  .c0 { stroke: #0969da } .c1 { stroke: #1a7f37 } .c2 { stroke: #bc4c00 } .c3 { stroke: #8250df }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 }
    text { fill: #e6edf3 } .axis { stroke: #6e7681 } .grid { stroke: #30363d } .fault { stroke: #30363d }
    .c0 { stroke: #58a6ff } .c1 { stroke: #3fb950 } .c2 { stroke: #f0883e } .c3 { stroke: #bc8cff }
  }
"""


class Series(NamedTuple):
    """A line: seconds since the beginning, and values."""

    name: str
    points: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """Lines on one scale."""

    title: str
    series: Sequence[Series]
    is_logarithmic: bool = False


def draw(title: str, panels: Sequence[Panel], *, marks: Sequence[float], seconds: float) -> str:
    """The chart as an SVG document; ``marks`` are the moments of faults."""
    height = _TOP + len(panels) * (_PANEL + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="{_LEFT}" y="24">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _drawn(panel, _TOP + number * (_PANEL + _GAP) + 34, marks, seconds)
    return "\n".join([*parts, "</svg>\n"])


def _drawn(panel: Panel, top: float, marks: Sequence[float], seconds: float) -> list[str]:
    floor = top + _PANEL - 34
    values = [value for series in panel.series for _, value in series.points] or [1.0]
    least, most = _span(values, is_logarithmic=panel.is_logarithmic)

    def x(second: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * min(second / seconds, 1)

    def y(value: float) -> float:
        if panel.is_logarithmic:
            share = (math.log10(max(value, least)) - math.log10(least)) / (math.log10(most) - math.log10(least))
        else:
            share = value / most
        return floor - (floor - top) * share

    parts = [f'<text x="{_LEFT}" y="{top - 18:.0f}">{escape(panel.title)}</text>']
    parts += [f'<line class="fault" x1="{x(at):.1f}" y1="{top}" x2="{x(at):.1f}" y2="{floor}"/>' for at in marks]
    for value in _lines(least, most, is_logarithmic=panel.is_logarithmic):
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y(value):.1f}" x2="{_RIGHT}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,g}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" y1="{floor}" x2="{_RIGHT}" y2="{floor}"/>')
    for tick in range(_TICKS + 1):
        at = seconds * tick / _TICKS
        parts.append(f'<text x="{x(at):.1f}" y="{floor + 16}" text-anchor="middle">{at / 60:g} min</text>')
    legend = float(_LEFT + 260)
    for number, series in enumerate(panel.series):
        colour = f"c{number % _COLOURS}"
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in series.points)
        parts.append(f'<polyline class="line {colour}" points="{points}"/>')
        parts.append(
            f'<line class="line {colour}" x1="{legend:.0f}" y1="{top - 22}" x2="{legend + 18:.0f}" y2="{top - 22}"/>'
            f'<text x="{legend + 23:.0f}" y="{top - 18}">{escape(series.name)}</text>'
        )
        legend += 45 + 7.2 * len(series.name)
    return parts


def _lines(least: float, most: float, *, is_logarithmic: bool) -> list[float]:
    """Where the scale is marked: at every power of ten, or at its ends and in the middle."""
    if is_logarithmic:
        return [least * 10.0**power for power in range(round(math.log10(most / least)) + 1)]
    return [least, (least + most) / 2, most]


def _span(values: Sequence[float], *, is_logarithmic: bool) -> tuple[float, float]:
    """The ends of a scale: powers of ten, or nothing and the next round number."""
    if is_logarithmic:
        least = 10.0 ** math.floor(math.log10(max(min(values), 0.01)))
        return least, max(10.0 ** math.ceil(math.log10(max(*values, 0.01))), least * 10)
    step = 1.0
    while True:
        for times in (1, 2, 5):
            if step * times >= max(values):
                return 0.0, step * times
        step *= 10

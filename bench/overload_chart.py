"""The chart of an overload run: requests a second, and memory below. Plain SVG, for light and dark backgrounds."""

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

_WIDTH: Final = 900
_LEFT: Final = 70
_RIGHT: Final = 880
_RATES: Final = (70.0, 330.0)
"""Top and bottom of the upper part."""
_MEMORY: Final = (380.0, 460.0)
_STYLE: Final = """
  .page { fill: #ffffff } .step { fill: #eef2f6 }
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .axis { stroke: #8c959f; stroke-width: 1 } .grid { stroke: #d0d7de; stroke-width: 1; stroke-dasharray: 3 4 }
  .line { fill: none; stroke-width: 2.5 }
  .offered { stroke: #6e7781; stroke-dasharray: 6 4 } .served { stroke: #1a7f37 }
  .refused { stroke: #bc4c00 } .failed { stroke: #cf222e } .memory { stroke: #0969da }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .step { fill: #161b22 }
    text { fill: #e6edf3 } .axis { stroke: #6e7681 } .grid { stroke: #30363d }
    .offered { stroke: #9198a1 } .served { stroke: #3fb950 } .refused { stroke: #f0883e }
    .failed { stroke: #ff7b72 } .memory { stroke: #58a6ff }
  }
"""


class Chart(NamedTuple):
    """What is shown; every series has one value a second."""

    title: str
    steps: Sequence[tuple[int, str]]
    """When each step began, and what was offered."""
    step_seconds: int
    offered: Sequence[float]
    served: Sequence[float]
    refused: Sequence[float]
    failed: Sequence[float]
    memory: Sequence[float]


def draw(chart: Chart) -> str:
    """The chart as an SVG document."""
    most, most_memory = _round_up(max(chart.offered)), _round_up(max(chart.memory))
    seconds = len(chart.offered)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} 490" role="img">',
        f"<title>{escape(chart.title)}</title><style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="490"/>',
        f'<text class="title" x="{_LEFT}" y="24">{escape(chart.title)}</text>',
        *_steps(chart, seconds),
        *_legend(),
        *_scale(most, _RATES, "requests/s"),
        *_scale(most_memory, _MEMORY, "MiB"),
    ]
    rates = {"offered": chart.offered, "served": chart.served, "refused": chart.refused, "failed": chart.failed}
    parts += [_line(name, values, most, _RATES) for name, values in rates.items()]
    parts.append(_line("memory", chart.memory, most_memory, _MEMORY))
    return "\n".join([*parts, "</svg>\n"])


def _legend() -> list[str]:
    names = (("offered", "offered"), ("served", "served (200)"), ("refused", "refused (503, 429)"),
             ("failed", "no answer or connection"), ("memory", "memory of the process"))  # fmt: skip
    parts, x = [], float(_LEFT)
    for style, text in names:
        parts.append(f'<line class="line {style}" x1="{x:.0f}" y1="44" x2="{x + 22:.0f}" y2="44"/>')
        parts.append(f'<text x="{x + 28:.0f}" y="48">{text}</text>')
        x += 50 + 7.2 * len(text)
    return parts


def _scale(most: float, span: tuple[float, float], unit: str) -> list[str]:
    parts = [f'<line class="axis" x1="{_LEFT}" y1="{span[1]}" x2="{_RIGHT}" y2="{span[1]}"/>']
    for share in (0.0, 0.5, 1.0):
        y = _y(share * most, most, span)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share * most:,.0f}</text>')
    parts.append(f'<text x="{_RIGHT}" y="{span[0] - 6:.0f}" text-anchor="end">{unit}</text>')
    return parts


def _steps(chart: Chart, seconds: int) -> list[str]:
    """The time of each step on darker ground; between them is the closed loop."""
    parts = []
    for start, text in chart.steps:
        left, right = _x(start, seconds), _x(start + chart.step_seconds, seconds)
        parts.append(
            f'<rect class="step" x="{left:.1f}" y="{_RATES[0]}" width="{right - left:.1f}" '
            f'height="{_MEMORY[1] - _RATES[0]}"/>'
        )
        parts.append(f'<text x="{left + 6:.1f}" y="{_RATES[1] + 20:.0f}">{escape(text)}</text>')
        parts.append(f'<text x="{left:.1f}" y="{_MEMORY[1] + 18:.0f}">{start} s</text>')
    return parts


def _line(name: str, values: Sequence[float], most: float, span: tuple[float, float]) -> str:
    points = " ".join(f"{_x(n + 0.5, len(values)):.1f},{_y(value, most, span):.1f}" for n, value in enumerate(values))
    return f'<polyline class="line {name}" points="{points}"/>'


def _x(second: float, seconds: int) -> float:
    return _LEFT + (_RIGHT - _LEFT) * second / seconds


def _y(value: float, most: float, span: tuple[float, float]) -> float:
    return span[1] - (span[1] - span[0]) * value / most


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 ... that is no less."""
    step = 1.0
    while True:
        for times in (1, 2, 5):
            if step * times >= value:
                return step * times
        step *= 10

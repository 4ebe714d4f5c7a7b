"""The results as pictures: plain SVG, in the reader's light or dark colours."""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

from bench.contestant import Job
from bench.results import Kind, Line, Report

_WIDTH: Final = 760
_NAMES: Final = 210
_NUMBERS: Final = 110
_BAR: Final = 20
_GAP: Final = 8
_TOP: Final = 62
_BOTTOM: Final = 52
_PREFERRED: Final = (64, 16, 1, 256)
"""The number of connections that is drawn: the first of these that was measured."""
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 15px }
.note, .value { fill: #59636e; font-size: 12px }
.page { fill: #ffffff }
.ours { fill: #0b6e4f } .limit { fill: #9aa4af } .peer { fill: #b45309 }
.line { stroke: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .note, .value { fill: #9198a1 } .page { fill: #0d1117 }
  .ours { fill: #3fb68b } .limit { fill: #6e7681 } .peer { fill: #e3933a }
  .line { stroke: #3d444d }
}
"""
_LEGEND: Final = "green: tenantry; orange: peers; grey: limits; in brackets: server processes"
_JOBS: Final = {Job.WEBHOOK: "Events taken in", Job.LIST: "Lists of 20 projects", Job.VERIFY: "Credentials checked"}


class _Bar(NamedTuple):
    """A row of a chart: from where to where its bar goes, in its unit, and what is written behind it."""

    name: str
    kind: Kind
    begin: float
    end: float
    text: str


class _Scale(NamedTuple):
    """Where a value is: to the right of `_NAMES`, as far as ``place`` says of 1; ``ticks`` are marked."""

    place: Callable[[float], float]
    ticks: Sequence[float] = ()

    def x(self, value: float) -> float:
        """The place in the picture."""
        return _NAMES + self.place(value) * (_WIDTH - _NAMES - _NUMBERS)


def draw(report: Report) -> Iterator[tuple[str, str]]:
    """The charts' file names and contents: throughput and latency of each job."""
    for job in Job:
        measured = {connections for of, connections in report.blocks() if of is job}
        connections = next((number for number in _PREFERRED if number in measured), None)
        found = [(line, line.at(connections or 0)) for line in report.lines if line.job is job]
        rows = [(line, measured) for line, measured in found if measured is not None]
        if not rows:
            continue
        where = f"{connections} connections, medians of {report.rounds} rounds of {report.seconds} s, one machine"
        rates = [_Bar(_name(line), line.kind, 0, one.per_second, f"{one.per_second:,.0f}") for line, one in rows]
        yield f"{job}-throughput.svg", _chart(f"{_JOBS[job]}: requests a second", where, rates, _linear(rates))
        latencies = [
            _Bar(_name(line), line.kind, one.p50_ms, one.p99_ms, f"{one.p50_ms:.1f} to {one.p99_ms:.1f}")
            for line, one in rows
        ]
        title = f"{_JOBS[job]}: milliseconds to the answer, from p50 to p99"
        yield f"{job}-latency.svg", _chart(title, f"{where}; logarithmic", latencies, _logarithmic(latencies))


def _linear(bars: Sequence[_Bar]) -> _Scale:
    longest = max(bar.end for bar in bars) or 1
    return _Scale(lambda value: value / longest)


def _logarithmic(bars: Sequence[_Bar]) -> _Scale:
    """From the power of ten below the shortest to the one above the longest."""
    first = math.floor(math.log10(max(min(bar.begin for bar in bars), 0.01)))
    last = max(math.ceil(math.log10(max(bar.end for bar in bars))), first + 1)
    ticks = [10.0**power for power in range(first, last + 1)]
    return _Scale(lambda value: (math.log10(max(value, ticks[0])) - first) / (last - first), ticks)


def _name(line: Line) -> str:
    return f"{line.name} ({line.processes})"


def _chart(title: str, note: str, bars: Sequence[_Bar], scale: _Scale) -> str:
    height = _TOP + len(bars) * (_BAR + _GAP) + _BOTTOM
    floor = height - _BOTTOM
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
            f'<text class="title" x="16" y="26">{escape(title)}</text>',
            f'<text class="note" x="16" y="46">{escape(note)}</text>',
            *[_tick(scale.x(tick), f"{tick:g}", floor) for tick in scale.ticks or (0.0,)],
            *[_row(number, bar, scale) for number, bar in enumerate(bars)],
            f'<text class="note" x="16" y="{height - 12}">{_LEGEND}</text>',
            "</svg>\n",
        ]
    )


def _tick(x: float, text: str, floor: float) -> str:
    return (
        f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{floor}"/>'
        f'<text class="note" x="{x:.1f}" y="{floor + 14}" text-anchor="middle">{text}</text>'
    )


def _row(number: int, bar: _Bar, scale: _Scale) -> str:
    top = _TOP + number * (_BAR + _GAP)
    middle = top + _BAR * 0.7
    begin, end = scale.x(bar.begin), scale.x(bar.end)
    return (
        f'<text x="{_NAMES - 10}" y="{middle:.1f}" text-anchor="end">{escape(bar.name)}</text>'
        f'<rect class="{bar.kind}" x="{begin:.1f}" y="{top}" width="{max(end - begin, 1):.1f}" height="{_BAR}"/>'
        f'<text class="value" x="{end + 6:.1f}" y="{middle:.1f}">{escape(bar.text)}</text>'
    )

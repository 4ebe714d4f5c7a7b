"""What a run has found, and how it is printed."""

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Report(NamedTuple):
    """The result of a run."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    """The cells of a table, which has this head."""
    lines: Sequence[str]
    """Totals, and what explains the rows."""
    violations: Sequence[str]
    """Every broken promise."""


def printed(reports: Sequence[Report]) -> Iterator[str]:
    """Return totals and violations of each run, and one table in Markdown of all."""
    for report in reports:
        yield ""
        yield from report.lines
        yield from (f"  WRONG: {text}" for text in report.violations)
    head = reports[0].head
    yield ""
    yield f"| {' | '.join(head)} |"
    yield "|---" + "|---:" * (len(head) - 1) + "|"
    yield from (f"| {' | '.join(row)} |" for report in reports for row in report.rows)


def median_and_longest(seconds: Sequence[float]) -> str:
    """Return the two with a tenth of a second."""
    return f"{statistics.median(seconds):.1f}, {max(seconds):.1f}" if seconds else "-"

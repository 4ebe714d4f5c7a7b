"""The table of deliberate faults still applies to the code, and still names tests that exist."""

import ast
import re
from collections import Counter
from typing import Final

import pytest

from tests.faults import ROOT, Fault, load_faults

FAULTS: Final = load_faults()
AREAS: Final = (
    "signature check",
    "key format",
    "containment",
    "token checks",
    "ordering",
    "fold",
    "batching",
    "deduplication",
    "parked events",
    "idempotency",
    "rate limits",
    "row-level security",
    "CSRF",
    "pagination",
    "reconcile",
    "mail outbox",
    "SDK retries",
    "CLI exit codes",
)
"""What the table covers; it may have further areas."""


def changes_nothing(fault: Fault) -> bool:
    return any(text == path.read_text() for path, text in fault.changed(ROOT).items())


def is_missing(node: str) -> bool:
    """Whether there is no such test; parameters of a test are not looked at."""
    file, _, rest = node.partition("::")
    function = rest.partition("[")[0]
    if not (ROOT / file).is_file():
        return True
    return bool(function) and not re.search(
        rf"^(async )?def {function}\(", (ROOT / file).read_text(), re.MULTILINE
    )


def test_the_table_covers_every_area() -> None:
    counts = Counter(fault.area for fault in FAULTS)
    assert len(FAULTS) >= 60
    assert [area for area in AREAS if counts[area] < 3] == []


def test_names_are_unique() -> None:
    counts = Counter(fault.name for fault in FAULTS)
    assert [name for name, number in counts.items() if number > 1] == []


def is_no_python(fault: Fault) -> bool:
    try:
        for path, text in fault.changed(ROOT).items():
            if path.suffix == ".py":
                ast.parse(text)
    except SyntaxError:
        return True
    return False


@pytest.mark.thorough
def test_code_with_a_fault_is_still_python() -> None:
    """Otherwise every test fails, and none has caught the fault."""
    assert [fault.name for fault in FAULTS if is_no_python(fault)] == []


def test_every_fault_changes_the_code() -> None:
    """`Fault.changed` raises for a text that does not occur exactly once."""
    assert [fault.name for fault in FAULTS if changes_nothing(fault)] == []


def test_every_fault_names_one_to_three_tests_that_exist() -> None:
    assert [fault.name for fault in FAULTS if not 1 <= len(fault.caught_by) <= 3] == []
    assert {node for fault in FAULTS for node in fault.caught_by if is_missing(node)} == set()

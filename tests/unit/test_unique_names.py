"""Names that occur once: those of test modules."""

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
IN_EVERY_FOLDER = {"__init__.py", "__main__.py", "conftest.py"}


def test_each_test_module_has_a_name_of_its_own() -> None:
    names = [path.name for path in TESTS.rglob("*.py") if "node_modules" not in path.parts]
    counts = Counter(name for name in names if name not in IN_EVERY_FOLDER)
    assert [name for name, count in counts.items() if count > 1] == []

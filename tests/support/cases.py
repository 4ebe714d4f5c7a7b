"""A table of cases in one test.

pytest makes a test of each case of `pytest.mark.parametrize`, in each test process. That costs
milliseconds, and many cases take microseconds.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from _pytest.mark.structures import ParameterSet

Test = Callable[..., Any]


class _Case(NamedTuple):
    name: str
    values: dict[str, Any]


def cases(
    names: str | Sequence[str],
    table: Iterable[Any],
    *,
    ids: Iterable[str] | Callable[[Any], object] | None = None,
) -> Callable[[Test], Test]:
    """Run the test for each case, as one test whose failure names the case.

    It takes the same arguments as `pytest.mark.parametrize`. All cases get the same fixtures, and
    none is skipped. An empty table fails the test. Raises `ValueError` for marks of a case, and
    unless there are as many ``ids`` as cases.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    given = list(table)
    labels = [None] * len(given) if ids is None or callable(ids) else ids
    rows = [_case(columns, row, label) for row, label in zip(given, labels, strict=True)]

    def as_one_test(test: Test) -> Test:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run(**fixtures: Any) -> None:
                for case in _some(rows):
                    with _named(case):
                        await test(**fixtures, **case.values)

        else:

            @functools.wraps(test)
            def run(**fixtures: Any) -> None:
                for case in _some(rows):
                    with _named(case):
                        test(**fixtures, **case.values)

        signature = inspect.signature(test)
        fixtures = [each for name, each in signature.parameters.items() if name not in columns]
        # pytest finds the fixtures of a test in its signature (PEP 362), which typeshed leaves out
        run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run

    return as_one_test


def _case(columns: Sequence[str], row: Any, label: str | None) -> _Case:
    if isinstance(row, ParameterSet) and row.marks:
        raise ValueError("a case cannot have marks: use pytest.mark.parametrize")
    values = row.values if isinstance(row, ParameterSet) else row
    if len(columns) == 1 and not isinstance(row, ParameterSet):
        values = (row,)
    by_name = dict(zip(columns, values, strict=True))
    name = label or (row.id if isinstance(row, ParameterSet) else None)
    return _Case(str(name or by_name), by_name)


def _some(rows: list[_Case]) -> list[_Case]:
    assert rows, "the table has no cases"
    return rows


@contextmanager
def _named(case: _Case) -> Iterator[None]:
    """Add the case to the exception that its test raises."""
    try:
        yield
    except pytest.skip.Exception as error:
        raise AssertionError(f"a case skips its whole table: {case.name}") from error
    except BaseException as error:
        error.add_note(f"case: {case.name}")
        raise

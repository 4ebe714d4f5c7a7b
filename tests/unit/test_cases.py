"""A table of cases in one test."""

import inspect

import pytest

from tests.support.cases import cases


def test_a_failure_names_its_case() -> None:
    @cases(("number", "even"), [pytest.param(2, True, id="two"), (3, True)])
    def check(number: int, *, even: bool) -> None:
        assert (number % 2 == 0) is even

    with pytest.raises(AssertionError) as failed:
        check()
    assert failed.value.__notes__ == ["case: {'number': 3, 'even': True}"]


async def test_tables_multiply_and_leave_the_fixtures() -> None:
    seen: list[tuple[str, int, str]] = []

    @cases("letter", ["a", "b"])
    @cases("number", [1, 2], ids=["one", "two"])
    async def check(fixture: str, letter: str, number: int) -> None:
        seen.append((letter, number, fixture))

    assert list(inspect.signature(check).parameters) == ["fixture"]
    await check(fixture="x")
    assert seen == [("a", 1, "x"), ("a", 2, "x"), ("b", 1, "x"), ("b", 2, "x")]


def test_a_table_without_cases_fails() -> None:
    @cases("number", [])
    def check(number: int) -> None: ...

    with pytest.raises(AssertionError, match="no cases"):
        check()


def test_marks_and_missing_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="marks"):
        cases("number", [pytest.param(1, marks=pytest.mark.thorough)])
    with pytest.raises(ValueError, match="shorter"):
        cases("number", [1, 2], ids=["one"])


def test_a_case_may_not_skip() -> None:
    @cases("number", [1])
    def check(number: int) -> None:
        pytest.skip("not here")

    with pytest.raises(AssertionError, match="skips its whole table"):
        check()

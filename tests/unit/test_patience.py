"""Changes of tables that are in use."""

import psycopg
import pytest

from tenantry.db import migrate as patience


@pytest.mark.parametrize("error", [psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected])
def test_change_that_got_in_the_way_of_others_is_made_again(
    error: type[psycopg.Error], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_PAUSE", 0)
    tries = iter([error(), error(), None])

    def change() -> None:
        if failure := next(tries):
            raise failure

    patience.patiently(change)
    assert list(tries) == []


def test_change_that_fails_otherwise_is_not_made_again() -> None:
    def change() -> None:
        raise psycopg.errors.UndefinedTable

    with pytest.raises(psycopg.errors.UndefinedTable):
        patience.patiently(change)

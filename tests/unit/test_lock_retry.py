"""Changes of tables that are in use."""

import psycopg
import pytest

from tenantry.db.migrate import retry_on_lock_timeout


@pytest.mark.parametrize(
    "error", [psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected]
)
def test_change_that_waited_for_others_is_retried(error: type[psycopg.Error]) -> None:
    attempts = iter([error(), error(), None])

    def change() -> None:
        if failure := next(attempts):
            raise failure

    retry_on_lock_timeout(change, pause=0)
    assert list(attempts) == []


def test_other_errors_are_not_retried() -> None:
    def change() -> None:
        raise psycopg.errors.UndefinedTable

    with pytest.raises(psycopg.errors.UndefinedTable):
        retry_on_lock_timeout(change, pause=0)

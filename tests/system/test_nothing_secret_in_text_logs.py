"""The full run of `tests/e2e/test_nothing_secret.py` with the log format for people."""

from pathlib import Path

from tests.e2e.test_nothing_secret import check_full_run
from tests.support import figures


async def test_no_secret_of_a_full_run_is_left_anywhere(
    conninfo: str, tmp_path: Path, record_property: figures.RecordProperty
) -> None:
    await check_full_run(conninfo, tmp_path, "console", record_property)

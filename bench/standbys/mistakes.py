"""The mistakes that make standbys answer from an older state: deliberate faults in the code."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.faults import load_faults
from tests.faults.repository_copy import RepositoryCopy

MISTAKES: Final = (
    "a standby's answer counts whatever it has replayed",
    "a change does not wait until standbys have replayed it",
)
"""Names in tests/faults/faults.toml: the check of the position left out, and the wait."""


@contextlib.contextmanager
def interpreter_with(mistake: str) -> Iterator[str]:
    """Yield an interpreter whose tenantry has a mistake. Raises `ValueError` if it does not
    apply.
    """
    [fault] = [each for each in load_faults() if each.name == mistake]
    with tempfile.TemporaryDirectory(prefix="tenantry-mistake-") as folder:
        copy = RepositoryCopy(Path(folder))
        with copy.applied(fault):
            yield copy.python

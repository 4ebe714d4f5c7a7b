"""Deliberate faults in the service, to see that a run notices them."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.faults import load_faults
from tests.faults.repository_copy import RepositoryCopy


@contextlib.contextmanager
def interpreter_with(mistake: str) -> Iterator[str]:
    """Yield an interpreter whose tenantry has a fault of `tests.faults`. Raises `ValueError` if it
    does not apply.
    """
    [fault] = [each for each in load_faults() if each.name == mistake]
    with tempfile.TemporaryDirectory(prefix="tenantry-mistake-") as folder:
        copy = RepositoryCopy(Path(folder))
        with copy.applied(fault):
            yield copy.python

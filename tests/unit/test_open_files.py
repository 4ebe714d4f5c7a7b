"""How many connections the files of a process are enough for."""

import subprocess
import sys

from tenantry.common.process import RESERVED_FILES
from tests.support.cases import cases

TOLD = """
import resource
from tenantry.common.process import allow_connections
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(allow_connections({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@cases(
    ("soft", "hard", "wanted", "given", "files"),
    [
        (1000, 2000, 500, 500, 1000),
        (1000, 2000, 1500, 1500, 1500 + RESERVED_FILES),
        (1000, 2000, 8000, 2000 - RESERVED_FILES, 2000),
        (100, 100, 8000, 1, 100),
    ],
    ids=["enough", "raised", "raised as far as may be", "next to none"],
)
def test_connections_are_as_many_as_the_files_allow(
    soft: int, hard: int, wanted: int, given: int, files: int
) -> None:
    code = TOLD.format(soft=soft, hard=hard, wanted=wanted)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(given), str(files)]

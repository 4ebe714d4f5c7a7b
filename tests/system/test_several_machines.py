"""Two hosts of the service, a balancer, a primary and a standby, each on a separate machine, and
failures between them.

`bench.machines` has more faults, and takes longer.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.required import debian_program, skip_or_fail

FAULTS: Final = ("host cut from the database", "dead host", "paused host")
ROOT: Final = Path(__file__).parents[2]


def test_promises_hold_while_hosts_are_isolated_killed_and_paused() -> None:
    if os.geteuid():
        skip_or_fail("needs root, for network namespaces")
    if not Path("/dev/net/tun").exists():
        skip_or_fail("needs /dev/net/tun: TAP devices of Linux")
    debian_program("ip", "iproute2")
    debian_program("haproxy")
    chosen = [part for fault in FAULTS for part in ("--only", fault)]
    command = [sys.executable, "-m", "bench.machines", *chosen]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

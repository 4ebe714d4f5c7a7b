"""The user's browser."""

import contextlib
import os
import re
import subprocess
import sys
from typing import Final

_SECRETS: Final = re.compile(
    r"(TENANTRY|DATABASE)_.*|.*(SECRET|PASS|PEPPER|CREDENTIAL|KEY|TOKEN).*", re.IGNORECASE
)
"""Variables that the browser's process must not get."""


def open_browser(url: str) -> None:
    """Start the browser in the background, without our streams and without secrets.

    Other users of the machine can see the address, so it must not contain a secret.
    """
    environment = {
        name: value for name, value in os.environ.items() if not _SECRETS.fullmatch(name)
    }
    # -I: do not import from the current folder
    command = [sys.executable, "-I", "-m", "webbrowser", url]
    silent = subprocess.DEVNULL
    with contextlib.suppress(OSError):  # the user can open the address
        subprocess.Popen(  # noqa: S603  # ours, and no shell
            command,
            env=environment,
            stdin=silent,
            stdout=silent,
            stderr=silent,
            start_new_session=True,
        )

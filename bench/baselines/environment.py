"""Python environments for the baselines: each app has its own, made from its lock file."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"^[A-Za-z0-9._-]+", re.MULTILINE)
_PRINT_VERSIONS: Final = """
import sys
from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in sys.argv[1:]))
"""


def python_of(app: Path) -> str:
    """The Python of an app's environment, whether it is there yet or not."""
    return str(app / ".venv" / "bin" / "python")


def install(app: Path) -> str:
    """Make ``.venv`` in an app's folder from its ``requirements.txt``, unless that is done already.

    Returns the versions of what its ``requirements.in`` names, in one line. Raises `subprocess.CalledProcessError`
    where something can't be installed.
    """
    lock_file = app / "requirements.txt"
    done = app / ".venv" / ".installed"
    wanted = hashlib.sha256(lock_file.read_bytes() + sys.version.encode()).hexdigest()
    if not done.exists() or done.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", app / ".venv"], check=True)
        pip = [python_of(app), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "--require-hashes", "-r", lock_file], check=True)
        done.write_text(wanted)
    return _versions(app)


def _versions(app: Path) -> str:
    names = _NAME.findall((app / "requirements.in").read_text())
    command = [python_of(app), "-c", _PRINT_VERSIONS, *names]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

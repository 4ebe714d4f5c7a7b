"""The command ``tenantry``: user commands over HTTP, and those that other distributions add."""

import sys
from typing import Final

_EXTRA: Final = {"click", "dotenv", "rich", "tomli", "tomlkit"}
"""The modules that the extra ``cli`` installs."""


def run() -> None:
    """Run the command line; the script ``tenantry`` calls this."""
    try:
        from tenantry_cli.commands import main  # noqa: PLC0415  # the extra may be missing

        main()
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(f"tenantry needs {error.name}: pip install 'tenantry-sdk[cli]'")

"""How commands end: the one table of exit codes, and saying why."""

import sys
from typing import Final, NoReturn

import click

FAILED: Final = 1
USAGE: Final = 2
"""What was asked for is not well-formed: asking again is of no use."""
NOT_AUTHENTICATED: Final = 4
"""The credential is missing, refused, or may not do this."""
NOT_FOUND: Final = 5
OUT_OF_REACH: Final = 6
"""There was no answer, or the service could give none for the moment: asking again later may help."""


class CommandError(Exception):
    """Why a command cannot go on, in words for the one who gave it, and the exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Say what went wrong on stderr and exit."""
    click.echo(message, err=True)
    sys.exit(code)

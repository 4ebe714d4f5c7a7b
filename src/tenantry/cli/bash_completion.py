"""Completion for bash that reads the line as it was typed.

Bash takes words apart at colons and equals signs before a completion sees them, and so also the address in
``--base-url http://...``: what came behind it would be completed as another command line than it is.
"""

import os
from typing import ClassVar

from click.shell_completion import BashComplete, add_completion_class, split_arg_string

_WORDS = 'COMP_WORDS="${COMP_WORDS[*]}"'
_LINE = 'COMP_WORDS="${COMP_LINE:0:COMP_POINT}"'


class WholeLineBash(BashComplete):
    """click's completion for bash, given the line up to the cursor."""

    source_template: ClassVar[str] = BashComplete.source_template.replace(_WORDS, _LINE)

    def get_completion_args(self) -> tuple[list[str], str]:
        """The whole words before the cursor, and the one that it is in."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)[1:]
        if not words or line[-1].isspace():
            return words, ""
        return words[:-1], words[-1]


def complete_whole_lines() -> None:
    """Let click complete for bash like this."""
    add_completion_class(WholeLineBash)

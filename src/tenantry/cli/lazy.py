"""Groups whose commands are imported when they are called, so that help and completion are quick."""

import importlib
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

Lazy = Mapping[str, tuple[str, str]]
"""By a command's name: its module, with ``:attribute`` where that is not the name itself, and a line of help."""

DEVKIT_COMMANDS: Final = ("demo", "listen", "trigger")
"""What the development kit adds, by an entry point."""
INSTALL_DEVKIT: Final = 'pip install "tenantry[demo]"'
COMPLETE_VARIABLE: Final = "_TENANTRY_COMPLETE"
"""Set by a shell that wants a line completed."""
_OTHERS: Final = "Commands"


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own.

    ``sections`` says under which heading a name is shown; those under none come last.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        commands: Lazy,
        sections: Mapping[str, tuple[str, ...]] | None = None,
        help: str | None = None,  # noqa: A002  # click's name
        **more: object,
    ) -> None:
        super().__init__(name, help=help, **more)  # type: ignore[arg-type]
        self._lazy = commands
        placed = {
            heading: tuple(name for name in names if name in commands) for heading, names in (sections or {}).items()
        }
        others = tuple(name for name in commands if not any(name in names for names in placed.values()))
        self._sections = {**placed, _OTHERS: others} if others else placed

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, in the order in which a newcomer meets them."""
        return [name for names in self._sections.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command."""
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute or cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; the refusal of an unknown one suggests names that look alike.

        Raises `click.UsageError` where a profile is named before a command that uses none.
        """
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            if error.command_name in DEVKIT_COMMANDS and ctx.parent is None:
                message = f"`tenantry {error.command_name}` needs the development kit: {INSTALL_DEVKIT}"
                raise click.UsageError(message, ctx) from None
            raise click.NoSuchCommand(error.command_name, possibilities=self._lazy, ctx=ctx) from None
        is_named = not ctx.resilient_parsing and ctx.find_root().params.get("profile") is not None
        if is_named and command is not None and not _takes_profile(command):
            raise click.UsageError(f"{ctx.command_path} {name} uses no service, and so no --profile.", ctx)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        for heading, names in self._sections.items():
            if not names:
                continue
            with formatter.section(heading):
                formatter.write_dl([(name, self._lazy[name][1]) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and options that begin so, without importing the commands."""
        names = [
            CompletionItem(name, help=self._lazy[name][1])
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


_WORDS = 'COMP_WORDS="${COMP_WORDS[*]}"'
_LINE = 'COMP_WORDS="${COMP_LINE:0:COMP_POINT}"'


class WholeLineBash(BashComplete):
    """click's completion for bash, given the line up to the cursor.

    Bash splits words at colons and equals signs before a completion sees them, also the address in
    ``--base-url http://...``. So this reads the line as it was typed.
    """

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


def _takes_profile(command: click.Command) -> bool:
    """Whether a command, or those of a group that are known only by name yet, may have a profile."""
    return isinstance(command, LazyGroup) or any(param.name == "profile" for param in command.params)


class Root(LazyGroup):
    """The group of all commands."""

    def main(self, *args: Any, **more: Any) -> Any:  # noqa: ANN401  # as click has it
        """Run a command, or complete one where a shell asks for that."""
        if COMPLETE_VARIABLE in os.environ:
            complete_whole_lines()
        return super().main(*args, **more)

"""Groups whose commands are imported only when they run, so that help and completion are fast."""

import importlib
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

CommandTable = Mapping[str, tuple[str, str]]
"""For each command name: its module (with ``:attribute`` where that differs from the name) and a line of help."""

DEVKIT_COMMANDS: Final = ("demo", "listen", "trigger")
"""The commands that the development kit adds through an entry point."""
INSTALL_DEVKIT: Final = 'pip install "tenantry[demo]"'
COMPLETE_VARIABLE: Final = "_TENANTRY_COMPLETE"
"""A shell sets this variable to complete a command line."""
_OTHERS: Final = "Commands"


class LazyGroup(click.Group):
    """A group that knows the names of its commands and imports a command when it runs.

    ``sections`` gives the headings of the help and the names below each; other commands come last. ``find_more``
    returns further commands. It is called only for help, completion and names that ``commands`` lacks.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        commands: CommandTable,
        find_more: Callable[[], CommandTable] = dict,
        sections: Mapping[str, tuple[str, ...]] | None = None,
        help: str | None = None,  # noqa: A002  # click's name
        **more: object,
    ) -> None:
        super().__init__(name, help=help, **more)  # type: ignore[arg-type]
        self._table = commands
        self._find_more = find_more
        self._headings = sections or {}

    @cached_property
    def _whole_table(self) -> CommandTable:
        return {**self._find_more(), **self._table}

    @cached_property
    def _sections(self) -> Mapping[str, tuple[str, ...]]:
        table = self._whole_table
        listed = {heading: tuple(filter(table.__contains__, names)) for heading, names in self._headings.items()}
        others = tuple(name for name in table if not any(name in names for names in listed.values()))
        return {**listed, _OTHERS: others} if others else listed

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the help."""
        return [name for names in self._sections.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command."""
        entry = self._table.get(cmd_name) or self._whole_table.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry[0].partition(":")
        command = getattr(importlib.import_module(module), attribute or cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for an unknown name, the error suggests similar ones.

        Raises `click.UsageError` if ``--profile`` stands before a command that uses no service.
        """
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            if error.command_name in DEVKIT_COMMANDS and ctx.parent is None:
                message = f"`tenantry {error.command_name}` needs the development kit: {INSTALL_DEVKIT}"
                raise click.UsageError(message, ctx) from None
            raise click.NoSuchCommand(error.command_name, possibilities=self._whole_table, ctx=ctx) from None
        has_profile = not ctx.resilient_parsing and ctx.find_root().params.get("profile") is not None
        if has_profile and command is not None and not _takes_profile(command):
            raise click.UsageError(f"{ctx.command_path} {name} uses no service, so it takes no --profile.", ctx)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        for heading, names in self._sections.items():
            if not names:
                continue
            with formatter.section(heading):
                formatter.write_dl([(name, self._whole_table[name][1]) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names and options without importing the commands."""
        names = [
            CompletionItem(name, help=self._whole_table[name][1])
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


def _takes_profile(command: click.Command) -> bool:
    """Whether a command takes --profile; of a group, some command may."""
    return isinstance(command, LazyGroup) or any(param.name == "profile" for param in command.params)


class Root(LazyGroup):
    """The group of all commands."""

    def main(self, *args: Any, **more: Any) -> Any:  # noqa: ANN401  # as in click
        """Run a command, or complete one if a shell asks for that."""
        if COMPLETE_VARIABLE in os.environ:
            from tenantry.cli.help import complete_whole_lines  # noqa: PLC0415  # no command needs it

            complete_whole_lines()
        return super().main(*args, **more)

"""Groups that import a command only when it runs; ``tenantry help``, ``version`` and ``completion``."""

import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import click
from click import shell_completion
from click.shell_completion import CompletionItem

from tenantry import __version__

Entry = tuple[str, str] | click.Group
"""The module of a command (with ``:attribute`` where that differs from its name) and a line of help; or a group."""
Sections = Mapping[str, Mapping[str, Entry]]
"""The headings of a group's help, and the commands below each."""

INSTALL_DEVKIT: Final = 'pip install "tenantry[demo]"'
DEVKIT_COMMANDS: Final = {"listen": "Test on this machine", "trigger": "Test on this machine", "demo": "Run a service"}
"""The commands that the development kit adds, each with its heading in the help."""


class LazyGroup(click.Group):
    """A group that knows the names of its commands and imports a command when it runs."""

    def __init__(self, name: str, help: str, sections: Sections, **more: object) -> None:  # noqa: A002  # click's name
        super().__init__(name, help=help, **more)  # type: ignore[arg-type]
        self.own_sections = sections

    @cached_property
    def sections(self) -> Sections:
        """Return the commands below each heading of the help."""
        return self.own_sections

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [name for entries in self.sections.values() for name in entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = _find(self.own_sections, cmd_name) or _find(self.sections, cmd_name)
        if entry is None or isinstance(entry, click.Group):
            return entry
        module, _, attribute = entry[0].partition(":")
        command = getattr(importlib.import_module(module), attribute or cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for an unknown name, the error suggests similar ones or names the development kit.

        Raises `click.UsageError` if ``--profile`` stands before a command that uses no service.
        """
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            name = error.command_name
            if isinstance(self, Root) and name in DEVKIT_COMMANDS:
                raise click.UsageError(f"`tenantry {name}` needs the development kit: {INSTALL_DEVKIT}", ctx) from None
            raise click.NoSuchCommand(name, possibilities=self.list_commands(ctx), ctx=ctx) from None
        has_profile = not ctx.resilient_parsing and ctx.find_root().params.get("profile") is not None
        # of a group, some command may take it
        if has_profile and command and not isinstance(command, LazyGroup):
            if any(param.name == "profile" for param in command.params):
                return name, command, rest
            raise click.UsageError(f"{ctx.command_path} {name} uses no service, so it takes no --profile.", ctx)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        for heading, entries in self.sections.items():
            if entries:
                with formatter.section(heading):
                    formatter.write_dl([(name, _help_of(entry)) for name, entry in entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names and options without importing the commands."""
        names = [
            CompletionItem(name, help=_help_of(entry))
            for entries in self.sections.values()
            for name, entry in entries.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


def _find(sections: Sections, name: str) -> Entry | None:
    return next((entries[name] for entries in sections.values() if name in entries), None)


def _help_of(entry: Entry) -> str:
    return entry.help or "" if isinstance(entry, click.Group) else entry[1]


class Root(LazyGroup):
    """The group of all commands; other installed distributions add theirs (entry points ``tenantry.commands``)."""

    @cached_property
    def sections(self) -> Sections:
        """Return all commands. Slow: help, completion and commands that the service lacks need it."""
        from importlib.metadata import entry_points  # noqa: PLC0415  # slow to import

        added = dict[str, dict[str, Entry]]({heading: {} for heading in self.own_sections})
        for entry_point in entry_points(group="tenantry.commands"):
            for name, entry in entry_point.load().items():
                added.setdefault(DEVKIT_COMMANDS.get(name, "Commands"), {})[name] = entry
        return {heading: {**entries, **self.own_sections.get(heading, {})} for heading, entries in added.items()}


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands, options and ids in a shell.

    \b
    bash   eval "$(tenantry completion bash)"       in ~/.bashrc
    zsh    eval "$(tenantry completion zsh)"        in ~/.zshrc, after compinit
    fish   tenantry completion fish | source        in ~/.config/fish/config.fish
    """
    found = shell_completion.get_completion_class(shell)
    assert found is not None  # noqa: S101  # the shells are click's own
    click.echo(found(ctx.find_root().command, {}, "tenantry", "_TENANTRY_COMPLETE").source())


@click.command("help")
@click.argument("command", nargs=-1)
@click.pass_context
def help_command(ctx: click.Context, command: Sequence[str]) -> None:
    """Show the help of a command, such as `tenantry help keys create`. Without COMMAND: list all commands."""
    root = ctx.find_root()
    root.command.main([*command, "--help"], root.info_name)


@click.command()
def version() -> None:
    """Show the version."""
    click.echo(f"tenantry, version {__version__}")

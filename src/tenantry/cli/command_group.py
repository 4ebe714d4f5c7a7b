"""Groups that import a command only when it runs; ``tenantry help``, ``version`` and
``completion``.
"""

import pkgutil
from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import click
from click import shell_completion

from tenantry import __version__

INSTALL_DEVKIT: Final = (
    'pip install "tenantry[demo]", or in a clone of the repository: pip install ".[demo]"'
)
DEVKIT_COMMANDS: Final = {
    "listen": "Test on this machine",
    "trigger": "Test on this machine",
    "demo": "Run a service",
}
"""The commands that the development kit adds, each with its heading in the help."""

Entry = tuple[str | dict[str, "Entry"], str]
"""The module of a command (with ``:attribute`` where that differs from its name), or a group's
commands; and its help.
"""


class LazyCommand(click.Command):
    """A placeholder for a command in help and completion, which is imported when it runs."""

    def __init__(
        self,
        name: str,
        target: str,
        help: str,  # noqa: A002  # click's name
    ) -> None:
        super().__init__(name, help=help, short_help=help)
        self.target = target if ":" in target else f"{target}:{name}"


def commands_of(entries: Mapping[str, Entry]) -> dict[str, click.Command]:
    return {
        name: LazyCommand(name, what, text)
        if isinstance(what, str)
        else LazyGroup(name, commands_of(what), help=text)
        for name, (what, text) in entries.items()
    }


class LazyGroup(click.Group):
    """A group that lists its commands in their order, and imports a command when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find and import a command. Raises `click.UsageError` if it uses no service, and
        ``--profile`` precedes it.
        """
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, LazyCommand):
            command = pkgutil.resolve_name(command.target)
        has_profile = ctx.find_root().params.get("profile") is not None
        if has_profile and not ctx.resilient_parsing and not _may_use_service(command):
            raise click.UsageError(
                f"{ctx.command_path} {name} uses no service, so it takes no --profile.", ctx
            )
        return name, command, rest


def _may_use_service(command: click.Command | None) -> bool:
    """Whether a command takes ``--profile``; of a group, some command may."""
    if command is None or isinstance(command, LazyGroup):
        return True
    return any(param.name == "profile" for param in command.params)


class Root(LazyGroup):
    """The group of all commands; other installed distributions add theirs (entry points
    ``tenantry.commands``).
    """

    def __init__(self, name: str, sections: Mapping[str, Mapping[str, Entry]], **more: Any) -> None:  # noqa: ANN401
        self._own = {heading: commands_of(entries) for heading, entries in sections.items()}
        super().__init__(
            name,
            dict(ChainMap(*self._own.values())),
            **more,
        )

    @cached_property
    def sections(self) -> dict[str, dict[str, click.Command]]:
        """All commands below their headings. Slow: help, completion and commands that the service
        lacks need it.
        """
        from importlib.metadata import entry_points  # noqa: PLC0415  # slow to import

        sections = dict[str, dict[str, click.Command]]({heading: {} for heading in self._own})
        for entry_point in entry_points(group="tenantry.commands"):
            for name, command in commands_of(entry_point.load()).items():
                sections.setdefault(DEVKIT_COMMANDS.get(name, "Commands"), {})[name] = command
        for heading, commands in self._own.items():
            sections[heading] |= commands
        self.commands = dict(ChainMap(*sections.values()))
        return sections

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [name for listed in self.sections.values() for name in listed]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command. Raises `click.UsageError` for one of the development kit that is not
        installed.
        """
        is_known = cmd_name in self.commands or cmd_name in self.list_commands(ctx)
        if cmd_name in DEVKIT_COMMANDS and not is_known:
            raise click.UsageError(
                f"`tenantry {cmd_name}` needs the development kit: {INSTALL_DEVKIT}", ctx
            )
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, commands in self.sections.items():
            if commands:
                with formatter.section(heading):
                    formatter.write_dl([(name, one.help or "") for name, one in commands.items()])


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
    click.echo(
        found(
            ctx.find_root().command,
            {},
            "tenantry",
            "_TENANTRY_COMPLETE",
        ).source()
    )


@click.command("help")
@click.argument("command", nargs=-1)
@click.pass_context
def help_command(ctx: click.Context, command: Sequence[str]) -> None:
    """Show the help of a command, such as `tenantry help keys create`. Without COMMAND: list all
    commands.
    """
    root = ctx.find_root()
    root.command.main([*command, "--help"], root.info_name)


@click.command()
def version() -> None:
    """Show the version."""
    click.echo(f"tenantry, version {__version__}")

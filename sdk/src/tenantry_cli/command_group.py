"""Groups that import a command only when it runs; ``tenantry help``, ``version`` and
``completion``.
"""

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import click
from click import shell_completion

INSTALL_DEVKIT: Final = (
    'pip install "tenantry[demo]", or in a clone of the repository: pip install ".[demo]"'
)
_DEVKIT_COMMANDS: Final = ("listen", "trigger", "demo")
_FIRST: Final = ("demo", "login", "status", "keys", "tenants", "plans", "trigger", "doctor")
"""What a new user needs; the help shows these."""
_ALL: Final = "all"
_WIDEST_NAME: Final = 32

Entry = tuple["str | Mapping[str, Entry]", str]
"""The module of a command (with ``:attribute`` where that differs from its name), or a group's
commands; and its help.
"""
Sections = Mapping[str, Mapping[str, Entry]]
"""Commands by heading of the help."""


def group(help: str, module: str, /, **commands: str | tuple[str, str]) -> Entry:  # noqa: A002  # click's name
    """Describe a group of commands of a module, each by its help, or by the name of its function
    and its help.
    """
    named = {
        name: (name, what) if isinstance(what, str) else what for name, what in commands.items()
    }
    return {name: (f"{module}:{function}", text) for name, (function, text) in named.items()}, help


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


class LazyGroup(click.Group):
    """A group that lists its commands in their order, and imports a command when it runs."""

    def add(self, entries: Mapping[str, Entry]) -> None:
        """Add commands; a group that it has already gets further ones, and another help."""
        for name, (what, text) in entries.items():
            if isinstance(what, str):
                self.commands[name] = LazyCommand(name, what, text)
                continue
            inner = self.commands.setdefault(name, LazyGroup(name))
            assert isinstance(inner, LazyGroup)  # noqa: S101  # commands of two kinds differ in name
            inner.help = text
            inner.add(what)

    def list_commands(self, ctx: click.Context) -> list[str]:
        _add_installed(ctx)
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            _add_installed(ctx)
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _add_installed(ctx)
        super().format_help(ctx, formatter)

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


def _add_installed(ctx: click.Context) -> None:
    root = ctx.find_root().command
    if isinstance(root, Root):
        root.add_installed()


class Root(LazyGroup):
    """The group of all commands; other installed distributions add theirs (entry points
    ``tenantry.commands``).
    """

    def __init__(self, name: str, sections: Sections, **more: Any) -> None:  # noqa: ANN401
        super().__init__(name, **more)
        self._headings: dict[str, list[str]] = {}
        self._is_complete = False
        self._add_sections(sections)

    def _add_sections(self, sections: Sections) -> None:
        for heading, entries in sections.items():
            listed = set(chain.from_iterable(self._headings.values()))
            self.add(entries)
            self._headings.setdefault(heading, []).extend(
                name for name in entries if name not in listed
            )

    def add_installed(self) -> None:
        """Add the commands of other distributions. Slow: help, completion and commands that are
        not the client's need it.
        """
        from importlib.metadata import entry_points  # noqa: PLC0415  # slow to import

        if self._is_complete:
            return
        self._is_complete = True
        found = entry_points(group="tenantry.commands")
        for entry_point in sorted(found, key=lambda one: one.name):
            self._add_sections(entry_point.load())

    def list_commands(self, ctx: click.Context) -> list[str]:
        _add_installed(ctx)
        return [*chain.from_iterable(self._headings.values())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command. Raises `click.UsageError` for one of the development kit that is not
        installed.
        """
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in _DEVKIT_COMMANDS:
            raise click.UsageError(
                f"`tenantry {cmd_name}` needs the development kit: {INSTALL_DEVKIT}", ctx
            )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        known = [name for name in _FIRST if name in self.commands]
        with formatter.section("Begin with"):
            formatter.write_dl([(name, self.commands[name].help or "") for name in known])
        formatter.write_paragraph()
        formatter.write_text(f"tenantry help {_ALL} lists every command, by group.")

    def format_all(self, formatter: click.HelpFormatter) -> None:
        """Write every command with its help, by heading."""
        for heading, names in self._headings.items():
            entries = [entry for name in names for entry in _leaves(name, self.commands[name])]
            if entries:
                with formatter.section(heading):
                    formatter.write_dl(entries, col_max=_WIDEST_NAME)


def _leaves(path: str, command: click.Command) -> Iterator[tuple[str, str]]:
    """Yield a command, or those of a group, each with its words and its help."""
    if not isinstance(command, click.Group):
        yield path, command.help or ""
        return
    for name, each in command.commands.items():
        yield from _leaves(f"{path} {name}", each)


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
    """Show the help of a command, such as `tenantry help keys create`; of the first commands
    without COMMAND, and a list of all commands with `all`.
    """
    root = ctx.find_root()
    if tuple(command) == (_ALL,) and isinstance(root.command, Root):
        click.echo(_all_commands(root.command))
        return
    root.command.main([*command, "--help"], root.info_name)


def _all_commands(root: Root) -> str:
    """List all commands, and the options that many of them have."""
    from tenantry_cli.api_command import connection_options  # noqa: PLC0415  # slow to import

    root.add_installed()
    formatter = click.get_current_context().make_formatter()
    root.format_all(formatter)
    with formatter.section("Options of commands that use a service"):
        formatter.write_dl(connection_options())
    return formatter.getvalue().strip("\n")


@click.command()
def version() -> None:
    """Show the version."""
    from tenantry_sdk import __version__  # noqa: PLC0415  # slow to import

    click.echo(f"tenantry, version {__version__}")

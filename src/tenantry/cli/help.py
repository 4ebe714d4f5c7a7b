"""``tenantry help``, ``version`` and ``completion``."""

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem, get_completion_class

from tenantry import __version__
from tenantry.cli.lazy import COMPLETE_VARIABLE, complete_whole_lines

_COMMAND = "tenantry"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what completes commands, options and ids in a shell.

    \b
    bash   eval "$(tenantry completion bash)"       in ~/.bashrc
    zsh    eval "$(tenantry completion zsh)"        in ~/.zshrc, after compinit
    fish   tenantry completion fish | source        in ~/.config/fish/config.fish
    """
    from tenantry.cli import main  # noqa: PLC0415  # which imports this module

    complete_whole_lines()
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101  # the shells are click's own
    click.echo(found(main, {}, _COMMAND, COMPLETE_VARIABLE).source())


def _names_after(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    given = ctx.params.get(param.name or "") or ()
    try:
        found = _context_of(ctx.find_root(), given)
    except click.UsageError:
        return []
    if not isinstance(found.command, click.Group):
        return []
    names = found.command.list_commands(found)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command("help")
@click.argument("command", nargs=-1, shell_complete=_names_after)
@click.pass_context
def help_command(ctx: click.Context, command: Sequence[str]) -> None:
    """Show what a command does and takes: `tenantry help keys create`. Without COMMAND: all commands."""
    click.echo(_context_of(ctx.find_root(), command).get_help())


@click.command()
def version() -> None:
    """Show the version."""
    click.echo(f"tenantry, version {__version__}")


def _context_of(root: click.Context, names: Sequence[str]) -> click.Context:
    """The context of the command with these names. Raises `click.UsageError` where there is none."""
    context = root
    for name in names:
        if not isinstance(context.command, click.Group):
            raise click.UsageError(f"{context.command_path} has no subcommands.", context)
        found = context.command.get_command(context, name)
        if found is None:
            raise click.NoSuchCommand(name, possibilities=context.command.list_commands(context), ctx=context)
        context = click.Context(found, info_name=name, parent=context)
    return context

"""``tenantry help``, ``version`` and ``completion``."""

import os
from collections.abc import Sequence
from typing import ClassVar

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from tenantry import __version__
from tenantry.cli.lazy_group import COMPLETE_VARIABLE

_COMMAND = "tenantry"


class WholeLineBash(BashComplete):
    """click's bash completion, given the line up to the cursor as it was typed.

    Bash splits words at colons and equals signs before a completion sees them, so it would cut the address in
    ``--base-url http://...`` into several words.
    """

    source_template: ClassVar[str] = BashComplete.source_template.replace(
        'COMP_WORDS="${COMP_WORDS[*]}"', 'COMP_WORDS="${COMP_LINE:0:COMP_POINT}"'
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the whole words before the cursor, and the word at the cursor."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)[1:]
        if not words or line[-1].isspace():
            return words, ""
        return words[:-1], words[-1]


def complete_whole_lines() -> None:
    """Make click use `WholeLineBash` for bash."""
    add_completion_class(WholeLineBash)


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and ids in a shell.

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
    """Show the help of a command, such as `tenantry help keys create`. Without COMMAND: list all commands."""
    click.echo(_context_of(ctx.find_root(), command).get_help())


@click.command()
def version() -> None:
    """Show the version."""
    click.echo(f"tenantry, version {__version__}")


def _context_of(root: click.Context, names: Sequence[str]) -> click.Context:
    """Return the context of the command with these names. Raises `click.UsageError` for an unknown one."""
    context = root
    for name in names:
        if not isinstance(context.command, click.Group):
            raise click.UsageError(f"{context.command_path} has no subcommands.", context)
        found = context.command.get_command(context, name)
        if found is None:
            raise click.NoSuchCommand(name, possibilities=context.command.list_commands(context), ctx=context)
        context = click.Context(found, info_name=name, parent=context)
    return context

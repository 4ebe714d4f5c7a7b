"""``tenantry completion``."""

import click
from click.shell_completion import get_completion_class

from tenantry.cli.lazy import COMPLETE_VARIABLE

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
    from tenantry.cli.bash_completion import complete_whole_lines  # noqa: PLC0415

    complete_whole_lines()
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101  # the shells are click's own
    click.echo(found(main, {}, _COMMAND, COMPLETE_VARIABLE).source())

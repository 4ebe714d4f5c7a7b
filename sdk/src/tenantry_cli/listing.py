"""The command ``list`` of a resource."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import click

from tenantry_cli.api_command import ApiCommand, ApiContext
from tenantry_cli.options import Decorator, limit_option
from tenantry_cli.output import Column


def list_command(
    resource: str, one: str, columns: Sequence[Column], *filters: Decorator
) -> Callable[[Callable[[], str]], click.Command]:
    """Make the command ``list`` of the client's resource from a function that returns the message
    for an empty list.

    ``one`` says what a line of JSON is: ``a member``. ``filters`` are the options that narrow the
    list.
    """

    def made(nothing: Callable[[], str]) -> click.Command:
        def list_objects(api: ApiContext, **values: Any) -> None:  # noqa: ANN401  # the options
            api.list(attrgetter(resource)(api.client).list, columns, nothing(), **values)

        callback: Callable[..., object] = limit_option(list_objects)
        for option in reversed(filters):
            callback = option(callback)
        json_help = f"One line of JSON {one}."
        decorator = click.command("list", cls=ApiCommand, help=nothing.__doc__, json_help=json_help)
        return decorator(callback)

    return made

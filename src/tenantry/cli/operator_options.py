"""Arguments and options that several operator commands have."""

from collections.abc import Sequence
from typing import Final

import click

from tenantry.domain.api_keys import is_secret_of_any
from tenantry.domain.scopes import is_scope
from tenantry.domain.tenants import is_tenant_id
from tenantry_cli.options import json_option
from tenantry_cli.output import NOT_FOUND, CommandError

_LONGEST_TEXT: Final = 200
"""As the API's."""


def tenant_id(text: str) -> str:
    """Check a tenant's id. Raises `click.BadParameter`."""
    if not is_tenant_id(text):
        raise click.BadParameter(f"{text!r} is no tenant id: 1 to 64 of A-Za-z0-9_-")
    return text


def check_scopes(scopes: Sequence[str]) -> None:
    """Check the values of ``--scope``. Raises `click.BadParameter`."""
    for scope in scopes:
        if not is_scope(scope):
            raise click.BadParameter(f"{scope!r} is not <resource>:<action>", param_hint="--scope")


def _known_form(text: str) -> str:
    """Return the id of a tenant. Raises `CommandError` for what can be none."""
    if not is_tenant_id(text):
        raise CommandError("There is no such tenant.", NOT_FOUND)
    return text


def search_text(text: str) -> str:
    """Check a search text. Raises `click.BadParameter` for a whole secret, which it does not
    repeat.
    """
    if is_secret_of_any(text):
        raise click.BadParameter(
            "this is a whole secret: pass its first or last four characters alone"
        )
    if len(text) > _LONGEST_TEXT or not text.isprintable():
        raise click.BadParameter("must be at most 200 printable characters")
    return text


org_argument: Final = click.argument("org_id", metavar="ORG", type=_known_form)
to_org_option: Final = click.option(
    "--org", "org_id", required=True, type=tenant_id, metavar="ORG", help="The organization."
)
only_org_option: Final = click.option(
    "--org", "org_id", type=tenant_id, metavar="ORG", help="Only this organization."
)
reason_option: Final = click.option(
    "--reason", metavar="TEXT", help="Why, for the audit trail and for the organization."
)
json_lines_option: Final = json_option("Print one line of JSON each.")

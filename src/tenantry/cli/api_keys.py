"""The commands of ``tenantry admin`` for API keys."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import click

from tenantry.cli.operator import Operator, OperatorError
from tenantry.cli.operator_command import OperatorCommand
from tenantry.cli.operator_options import (
    check_scopes,
    reason_option,
    search_text,
    to_org_option,
)
from tenantry.domain.api_keys import ApiKey, KeyTerms
from tenantry.domain.permissions import AccessLevel, Mode
from tenantry_cli.options import (
    expires_at_option,
    expires_in_option,
    expiry_of,
    json_option,
    yes_option,
)
from tenantry_cli.output import (
    CommandError,
    confirm,
    last_use,
    print_json,
    report,
)
from tenantry_cli.times import utc_now

_LAST_OWNER: Final = "last_owner"
"""The code of the error."""


@click.command("create-key", cls=OperatorCommand)
@to_org_option
@click.option("--name", required=True, help="The key's name.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    help="<resource>:<action>; repeatable.",
)
@click.option("--owner", is_flag=True, help="The highest level, instead of scopes.")
@click.option(
    "--mode",
    type=click.Choice(["live", "test"]),
    default="live",
    show_default=True,
    help="Whose objects the key sees.",
)
@expires_in_option
@expires_at_option
@json_option("The key with its secret as one JSON document.")
def create_key(
    operator: Operator,
    *,
    org_id: str,
    name: str,
    scopes: Sequence[str],
    owner: bool,
    mode: str,
    expires_in: timedelta | None,
    expires_at: datetime | None,
    as_json: bool,
) -> None:
    """Create an API key and print its secret, alone, on stdout.

    \b
      KEY=$(tenantry admin create-key --org acme --name CI --scope projects:read)
    """
    if bool(scopes) == owner:
        raise click.UsageError("Pass either --scope (once or more) or --owner.")
    check_scopes(scopes)
    terms = KeyTerms(
        name=name,
        scopes=tuple(scopes),
        access_level=AccessLevel.OWNER if owner else None,
        mode=Mode(mode),
        expires_at=expiry_of(utc_now(), expires_in, expires_at),
    )
    key = operator.create_key(org_id, terms)
    if as_json:
        print_json(key)
    else:
        click.echo(key.secret)


@click.command("revoke-key", cls=OperatorCommand)
@click.argument("key_id", metavar="KEY", type=search_text)
@click.option(
    "--force", is_flag=True, help="Also the last OWNER key of an organization without an owner."
)
@reason_option
@yes_option
@json_option()
def revoke_key(
    operator: Operator,
    *,
    key_id: str,
    force: bool,
    reason: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Revoke an API key of any organization: the very next request with it is rejected. You cannot
    undo that.

    KEY is the key's id; `tenantry admin find` finds it by what a log shows. A key that is revoked
    already is no error.

    \b
      tenantry admin revoke-key key_01a1f97751a3e4c5b6d7f8091a2b3c4d
    """
    if not yes:
        confirm(f"Revoke {_described(operator.get_key(key_id))} {operator.where}?")
    try:
        key = operator.revoke_key(key_id, reason, force=force)
    except OperatorError as error:
        if error.code != _LAST_OWNER:
            raise
        raise CommandError(
            "This is the last OWNER key of an organization without an owner. Create another first, or pass --force."
        ) from None
    report(key, f"Revoked {key.id} of {key.org_id} {operator.where}.", as_json=as_json)


def _described(key: ApiKey) -> str:
    used = last_use(key.last_used_at, utc_now())
    return f'"{key.name}" of {key.org_id} ({key.start}...{key.last4}), {key.status}, {used},'

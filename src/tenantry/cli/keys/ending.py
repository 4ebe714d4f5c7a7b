"""``tenantry keys revoke``."""

import click

from tenantry.cli.api.client import Api
from tenantry.cli.api.command import ApiCommand, Id, completed, yes_option
from tenantry.cli.keys.making import described


@click.command("revoke", cls=ApiCommand, json_help="One line of JSON a key.")
@click.argument(
    "key_ids", metavar="KEY...", nargs=-1, required=True, type=Id(), shell_complete=completed("active keys")
)
@click.option("--force", is_flag=True, help="Also the last OWNER key of an organization without an owner.")
@yes_option
def revoke(api: Api, *, key_ids: tuple[str, ...], force: bool, yes: bool) -> None:
    """Revoke API keys: the very next request with one is refused. That cannot be taken back.

    A key that has ended already stays so, and that is no failure.
    """
    keys = api.client.api_keys
    api.end_each(
        key_ids,
        question=lambda key_id: f"Revoke {described(api, keys.get(key_id))}?",
        end=lambda key_id: keys.delete(key_id, force=force or None),
        verb="Revoked",
        outcome={"status": "revoked"},
        yes=yes,
    )

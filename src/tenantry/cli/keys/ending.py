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
    ids = dict.fromkeys(key_ids)
    if not yes:
        for key_id in ids:
            api.confirm(f"Revoke {described(api, api.client.api_keys.get(key_id))}?", yes=yes)

    def end(key_id: str) -> None:
        api.client.api_keys.delete(key_id, force=force or None)
        api.done(f"Revoked {key_id}.", {"id": key_id, "status": "revoked"})

    api.end_each(ids, end)

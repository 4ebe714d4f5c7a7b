"""``tenantry keys list`` and ``show``."""

from collections.abc import Iterator

import click

from tenantry.cli.api.client import PAGE, Api
from tenantry.cli.api.command import ApiCommand, Id, completed, limit_option
from tenantry.cli.api.tables import Column
from tenantry.cli.text import shown
from tenantry.cli.times import ago, day
from tenantry_sdk import ApiKey


@click.command("list", cls=ApiCommand, json_help="One line of JSON a key.")
@click.option("--status", type=click.Choice(["active", "revoked", "expired"]), help="Only those.")
@click.option(
    "--search",
    metavar="TEXT",
    help="Only those with this in their name, id, or shown characters, such as svc_live_AbCd, wxyz or AbCd...wxyz. "
    "Never a whole secret.",
)
@limit_option
def list_keys(api: Api, *, status: str | None, search: str | None, limit: int | None) -> None:
    """List the API keys of the organization, the newest first: those of both modes, or of test mode for a test key."""
    columns = [
        Column[ApiKey]("ID", lambda key: key.id),
        Column[ApiKey]("NAME", _name, loose=True),
        Column[ApiKey]("STATUS", state_of),
        Column[ApiKey]("EXPIRES", lambda key: day(key.expires_at) if key.expires_at else "never"),
        Column[ApiKey]("USED", lambda key: ago(key.last_used_at, api.now)),
        Column[ApiKey]("ENDS IN", lambda key: key.last4, wide=True),
        Column[ApiKey]("SCOPES", scopes_of, loose=True, wide=True),
    ]
    pager = api.client.api_keys.list(
        org_id=api.target.organization, status=status, search=search, limit=min(limit or PAGE, PAGE)
    )
    none = "No API key matches." if search else f"No API key is {status}." if status else "There are no API keys."
    api.list(pager, limit, columns, none)


@click.command("show", cls=ApiCommand)
@click.argument("key_id", metavar="KEY", type=Id(), shell_complete=completed("keys"))
def show(api: Api, *, key_id: str) -> None:
    """Show an API key: what it may do, how long, and when and from where it was last used. Never its secret."""
    key = api.client.api_keys.get(key_id)
    api.record(key, _rows(api, key))


def _name(key: ApiKey) -> str:
    return key.name if key.mode == "live" else f"{key.name} ({key.mode})"


def state_of(key: ApiKey) -> str:
    """The status, and why a key that works does not count, or why one was revoked."""
    if key.leak_reported_at:
        return f"{key.status} (leaked)"
    return f"{key.status} (replaced)" if key.status == "active" and key.superseded_by else key.status


def scopes_of(key: ApiKey) -> str:
    """What a key may do, in one line."""
    return "everything (OWNER)" if key.access_level == "OWNER" else " ".join(key.scopes)


def in_short(key: ApiKey) -> str:
    """The name and both ends of the secret, which tell people which key is meant."""
    return f'"{key.name}" ({key.start}...{key.last4})'


def _rows(api: Api, key: ApiKey) -> Iterator[tuple[str, str]]:
    yield "id", key.id
    yield "name", key.name
    yield "status", key.status
    yield "secret", f"{key.start}...{key.last4}"
    yield "scopes", scopes_of(key)
    yield "mode", key.mode
    yield "organization", key.org_id
    yield "expires", shown(key.expires_at) if key.expires_at else "never"
    address = f", from {key.last_used_address}" if key.last_used_address else ""
    used = f"{shown(key.last_used_at)} ({ago(key.last_used_at, api.now)}){address}"
    yield "last used", used if key.last_used_at else "never"
    yield "created", f"{shown(key.created_at)} by {key.created_by}"
    if key.revoked_at:
        yield "revoked", shown(key.revoked_at)
    if key.leak_reported_at:
        yield "reported as leaked", shown(key.leak_reported_at)
    if key.rotated_from:
        yield "in place of", key.rotated_from
    if key.superseded_by:
        yield "replaced by", key.superseded_by

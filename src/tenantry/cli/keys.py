"""``tenantry keys``: list, show, create, rotate and revoke API keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import click

from tenantry.cli.api_client import PAGE, Api, Column
from tenantry.cli.api_command import ApiCommand, Id, completed, limit_option, yes_option
from tenantry.cli.text import Duration, Moment, ago, day, shown
from tenantry_sdk import ApiKey, NewApiKey


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


@click.command("create", cls=ApiCommand, json_help="The key with its secret as one JSON document.")
@click.option("--name", required=True, help="What people call it.")
@click.option("--scope", "scopes", multiple=True, metavar="RESOURCE:ACTION", help="What it may do; several times.")
@click.option("--owner", is_flag=True, help="Everything, instead of scopes: only where nothing less will do.")
@click.option("--expires-in", type=Duration(), metavar="LENGTH", help="How long it is good, such as 90d or 12h.")
@click.option("--expires-at", type=Moment(), metavar="TIME", help="When it ends, such as 2027-01-31T00:00:00Z.")
@click.option("--mode", type=click.Choice(["live", "test"]), help="Your own unless said otherwise.")
def create(
    api: Api,
    *,
    name: str,
    scopes: tuple[str, ...],
    owner: bool,
    expires_in: timedelta | None,
    expires_at: datetime | None,
    mode: str | None,
) -> None:
    """Make an API key and print its secret, alone, on stdout: this once, and never again.

    KEY=$(tenantry keys create --name CI --scope projects:read --expires-in 90d)
    """
    if bool(scopes) == owner:
        raise click.UsageError("Give either --scope (once or more) or --owner.")
    if expires_in is not None and expires_at is not None:
        raise click.UsageError("Give --expires-in or --expires-at, not both.")
    if expires_in is not None and not expires_in:
        raise click.BadParameter("has to be longer than nothing", param_hint="--expires-in")
    api.check_stdout()
    with _told_when_interrupted():
        key = api.client.api_keys.create(
            org_id=api.org_id,
            name=name,
            scopes=scopes,
            access_level="OWNER" if owner else None,
            expires_at=expires_at if expires_in is None else api.now + expires_in,
            mode=mode,
        )
    _give(api, key, f'Made "{key.name}"')


@click.command("rotate", cls=ApiCommand, json_help="The new key with its secret as one JSON document.")
@click.argument("key_id", metavar="KEY", type=Id(), shell_complete=completed("active keys"))
@click.option(
    "--overlap", type=Duration(), default="0s", metavar="LENGTH", help="How long the old key goes on, 7d at most. [0s]"
)
@yes_option
def rotate(api: Api, *, key_id: str, overlap: timedelta, yes: bool) -> None:
    """Put a new key in the place of one, and print its secret, alone, on stdout: this once, and never again.

    Without --overlap the old key ends at once, and that is asked about.

    KEY=$(tenantry keys rotate key_... --overlap 1h)
    """
    api.check_stdout()
    if not overlap and not yes:
        old = api.client.api_keys.get(key_id)
        api.confirm(f"Rotate {described(api, old)}? It ends at once; --overlap lets it go on for a while.", yes=yes)
    with _told_when_interrupted():
        key = api.client.api_keys.rotate(key_id, overlap_seconds=int(overlap.total_seconds()))
    ends = f"goes on until {shown(api.now + overlap)} at most" if overlap else "has ended"
    _give(api, key, f'Rotated "{key.name}": {key_id} {ends}, and in its place is')


def described(api: Api, key: ApiKey) -> str:
    """A key as it is asked about."""
    return f"{in_short(key)}, {key.status}, last used {ago(key.last_used_at, api.now)}"


def _give(api: Api, key: NewApiKey, done: str) -> None:
    until = f"until {shown(key.expires_at)}" if key.expires_at else "without an end (--expires-in sets one)"
    made = f"{done} {key.id}: {scopes_of(key)}, {key.mode}, {until}."
    api.hand_over(key, (made, "This is its secret. It is shown this once."))


@contextmanager
def _told_when_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\nInterrupted: there may be a new key that nobody has seen. Look: tenantry keys list", err=True)
        raise


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

"""``tenantry keys create`` and ``rotate``: the two that give a secret."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import click

from tenantry.cli.api.client import Api
from tenantry.cli.api.command import ApiCommand, Id, completed, yes_option
from tenantry.cli.keys.looking import in_short, scopes_of
from tenantry.cli.text import shown
from tenantry.cli.times import Duration, Moment, ago
from tenantry_sdk import ApiKey, NewApiKey


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

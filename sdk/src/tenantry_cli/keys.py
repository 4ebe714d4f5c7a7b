"""``tenantry keys``: list, show, create, rotate, switch off and revoke API keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial

import click

from tenantry_cli.api_command import ApiCommand, ApiContext, Rows, id_argument, show_command
from tenantry_cli.options import (
    expires_at_option,
    expires_in_option,
    expiry_of,
    limit_option,
    reason_option,
    status_option,
    yes_option,
)
from tenantry_cli.output import Column, ago, confirm, day, last_use, pairs, say, shown
from tenantry_cli.times import parse_duration
from tenantry_sdk import ApiKey, NewApiKey
from tenantry_sdk.types import Mode


@click.command("list", cls=ApiCommand, json_help="One line of JSON a key.")
@status_option("keys", "active", "revoked", "expired")
@click.option(
    "--search",
    metavar="TEXT",
    help="Only keys with this text in their name, id, external id, or visible characters, such as "
    "svc_live_AbCd, wxyz or AbCd...wxyz. Never pass a whole secret.",
)
@click.option("--external-id", metavar="ID", help="Only keys with exactly this external id.")
@limit_option
def list_keys(api: ApiContext, *, limit: int | None, **filters: str | None) -> None:
    """List the API keys of the organization, the newest first. A test key sees only keys of test
    mode.

    \b
      tenantry keys list --status active --search CI
    """
    columns = [
        Column("ID", "id"),
        Column(
            "NAME",
            lambda key: key.name if key.mode == "live" else f"{key.name} ({key.mode})",
            loose=True,
        ),
        Column("STATUS", _status),
        Column("EXPIRES", "expires_at", partial(day, missing="never")),
        Column("USED", "last_used_at", partial(ago, now=api.now)),
        Column("ENDS IN", "last4", wide=True),
        Column("SCOPES", _scopes, loose=True, wide=True),
    ]
    none = "No API key matches." if any(filters.values()) else "There are no API keys."
    org_id = api.target.org
    api.list(api.client.api_keys.list, columns, none, limit=limit, org_id=org_id, **filters)


def _status(key: ApiKey) -> str:
    if key.leak_reported_at:
        return f"{key.status} (leaked)"
    if key.status == "active" and not key.enabled:
        return "active (switched off)"
    if key.status == "active" and key.superseded_by:
        return "active (replaced)"
    if key.status == "active" and key.imported_as:
        return "active (imported, not used yet)"
    return key.status


def _scopes(key: ApiKey) -> str:
    return "everything (OWNER)" if key.access_level == "OWNER" else " ".join(key.scopes)


@show_command("api_keys", "KEY")
def show(api: ApiContext, key: ApiKey) -> Rows:
    """Show an API key: its scopes, its expiry, and when and from where it was last used. Never its
    secret.

    \b
      tenantry keys show key_01a1f97751a3e4c5b6d7f8091a2b3c4d
    """
    yield from pairs(key, "id", "name", "status")
    if not key.enabled:
        yield "enabled", "no"
    yield "secret", f"{key.start}...{key.last4}"
    yield "scopes", _scopes(key)
    yield from pairs(key, "mode", organization="org_id", external_id="external_id")
    if key.metadata:
        yield "metadata", shown(", ".join(map("=".join, key.metadata.items())))
    if key.allowed_addresses:
        yield "allowed addresses", shown(", ".join(key.allowed_addresses))
    yield from pairs(key, requests_per_minute="requests_per_minute")
    yield "expires", shown(key.expires_at) if key.expires_at else "never"
    if key.last_used_at:
        yield "last used", f"{shown(key.last_used_at)} ({ago(key.last_used_at, api.now)})"
    else:
        yield "use", "never used"
    yield from pairs(
        key,
        used_from="last_used_address",
        created="created_at",
        created_by="created_by",
        revoked="revoked_at",
        reported_as_leaked="leak_reported_at",
        in_place_of="rotated_from",
        replaced_by="superseded_by",
    )


def _parse_metadata(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``; the value may be empty, and have more equals signs."""
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise click.BadParameter("must be NAME=VALUE")
    return name, value


@click.command("create", cls=ApiCommand, json_help="The key with its secret as one JSON document.")
@click.option("--name", required=True, help="The name.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="RESOURCE:ACTION",
    help="A permission; repeatable.",
)
@click.option("--owner", is_flag=True, help="All permissions, instead of scopes.")
@expires_in_option
@expires_at_option
@click.option("--mode", type=click.Choice(["live", "test"]), help="By default your credential's.")
@click.option(
    "--external-id", metavar="ID", help="The id that another system of yours gives the key."
)
@click.option(
    "--metadata",
    "metadata",
    multiple=True,
    type=_parse_metadata,
    metavar="NAME=VALUE",
    help="What your systems store with the key; repeatable. Never a secret.",
)
@click.option(
    "--allowed-address",
    "allowed_addresses",
    multiple=True,
    metavar="ADDRESS",
    help="An IP address or network from which the key may be used; repeatable. [any]",
)
@click.option(
    "--requests-per-minute",
    type=click.IntRange(1, 1_000_000),
    metavar="NUMBER",
    help="The key's own limit.",
)
@click.option("--disabled", is_flag=True, help="Create the key switched off.")
def create(
    api: ApiContext,
    *,
    name: str,
    scopes: tuple[str, ...],
    owner: bool,
    expires_in: timedelta | None,
    expires_at: datetime | None,
    mode: Mode | None,
    external_id: str | None,
    metadata: tuple[tuple[str, str], ...],
    allowed_addresses: tuple[str, ...],
    requests_per_minute: int | None,
    disabled: bool,
) -> None:
    """Create an API key and print its secret, alone, on stdout. The secret is shown only once.

    KEY=$(tenantry keys create --name CI --scope projects:read --expires-in 90d)
    """
    if bool(scopes) == owner:
        raise click.UsageError("Pass either --scope (once or more) or --owner.")
    expiry = expiry_of(api.now, expires_in, expires_at)
    api.check_stdout()
    with _warning_if_interrupted():
        key = api.client.api_keys.create(
            org_id=api.org_id,
            name=name,
            scopes=scopes,
            access_level="OWNER" if owner else None,
            expires_at=expiry,
            mode=mode,
            external_id=external_id,
            metadata=dict(metadata),
            allowed_addresses=allowed_addresses,
            enabled=not disabled,
            requests_per_minute=requests_per_minute,
        )
    _print_new(api, key, f'Made "{key.name}"')


@click.command(
    "rotate", cls=ApiCommand, json_help="The new key with its secret as one JSON document."
)
@id_argument("key_id", "KEY", "api_keys", status="active")
@click.option(
    "--overlap",
    type=parse_duration,
    default="0s",
    metavar="LENGTH",
    help="Keep the old key working, at most 7d. [0s]",
)
@yes_option
def rotate(
    api: ApiContext,
    *,
    key_id: str,
    overlap: timedelta,
    yes: bool,
) -> None:
    """Replace a key by a new one, and print its secret, alone, on stdout. The secret is shown only
    once.

    Without --overlap the old key is revoked now; the command asks for confirmation.

    KEY=$(tenantry keys rotate key_... --overlap 1h)
    """
    api.check_stdout()
    if not overlap and not yes:
        old = _described(api, key_id)
        confirm(
            f"Rotate {old}? The old key stops working now; --overlap keeps it working for a while."
        )
    with _warning_if_interrupted():
        key = api.client.api_keys.rotate(key_id, overlap_seconds=int(overlap.total_seconds()))
    ends = f"works until {shown(api.now + overlap)} at most" if overlap else "is revoked"
    _print_new(api, key, f'Rotated "{key.name}": {key_id} {ends}, replaced by')


def _described(api: ApiContext, key_id: str) -> str:
    """Describe a key for a confirmation: its name, both ends of the secret, and its use."""
    key = api.client.api_keys.get(key_id)
    return f'"{key.name}" ({key.start}...{key.last4}), {key.status}, {last_use(key.last_used_at, api.now)}'


def _print_new(api: ApiContext, key: NewApiKey, done: str) -> None:
    until = "without expiry (set one with --expires-in)"
    if key.expires_at:
        until = f"until {shown(key.expires_at)}"
    made = f"{done} {key.id}: {_scopes(key)}, {key.mode}, {until}."
    api.print_secret(key, f"{made}\nThis is its secret. It is shown this once.")


@contextmanager
def _warning_if_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say("\nInterrupted: the service may have created a key. Check with: tenantry keys list")
        raise


@click.command("revoke", cls=ApiCommand, json_help="One line of JSON a key.")
@id_argument(
    "key_ids",
    "KEY",
    "api_keys",
    many=True,
    status="active",
)
@click.option(
    "--force", is_flag=True, help="Also the last OWNER key of an organization without an owner."
)
@reason_option
@yes_option
def revoke(
    api: ApiContext,
    *,
    key_ids: tuple[str, ...],
    force: bool,
    reason: str | None,
    yes: bool,
) -> None:
    """Revoke API keys: the very next request with one is rejected. You cannot undo that.

    A key that is already revoked or expired is no error.

    \b
      tenantry keys revoke key_01a1f97751a3e4c5b6d7f8091a2b3c4d --yes
    """
    end = partial(api.client.api_keys.delete, force=force or None, reason=reason)
    api.end_each(
        key_ids,
        lambda key: f"Revoke {_described(api, key)}?",
        end,
        "Revoked",
        yes=yes,
        status="revoked",
    )


@click.command("disable", cls=ApiCommand, json_help="One line of JSON a key.")
@id_argument("key_ids", "KEY", "api_keys", many=True, status="active")
@yes_option
def disable(api: ApiContext, *, key_ids: tuple[str, ...], yes: bool) -> None:
    """Switch API keys off: the very next request with one is rejected.

    \b
      tenantry keys disable key_01a1f97751a3e4c5b6d7f8091a2b3c4d --yes
    """
    api.end_each(
        key_ids,
        lambda key: f"Switch off {_described(api, key)}?",
        partial(api.client.api_keys.update, enabled=False),
        "Switched off",
        yes=yes,
        enabled=False,
    )


@click.command("enable", cls=ApiCommand, json_help="One line of JSON a key.")
@id_argument("key_ids", "KEY", "api_keys", many=True, status="active")
def enable(api: ApiContext, *, key_ids: tuple[str, ...]) -> None:
    """Switch API keys on again.

    \b
      tenantry keys enable key_01a1f97751a3e4c5b6d7f8091a2b3c4d
    """
    api.end_each(
        key_ids,
        lambda key: key,
        partial(api.client.api_keys.update, enabled=True),
        "Switched on",
        yes=True,
        enabled=True,
    )

"""``tenantry whoami``."""

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from tenantry.cli.api.client import Api
from tenantry.cli.api.command import ApiCommand
from tenantry.cli.text import shown
from tenantry_sdk import Whoami


@click.command("whoami", cls=ApiCommand)
def whoami(api: Api) -> None:
    """Show who you are, where, and until when."""
    who = api.client.auth.whoami()
    target = api.target
    document: dict[str, Any] = msgspec.to_builtins(who)
    source = {"service": target.base_url.value, "credential": target.credential, "profile": target.profile}
    api.record({**document, **source}, _rows(api, who))


def _rows(api: Api, who: Whoami) -> Iterator[tuple[str, str]]:
    target = api.target
    yield "who", f"{who.id} ({'API key' if who.kind == 'api_key' else who.kind})"
    yield "organization", f"{who.org_id} (plan {who.plan}, subscription {who.subscription_status})"
    yield "may", "everything (OWNER)" if who.access_level == "OWNER" else " ".join(who.scopes) or "nothing"
    yield "mode", who.mode
    yield "service", f"{target.base_url.value} (from {target.base_url.source})"
    yield "credential", f"from {target.credential}"
    renewed = ", renewed by itself" if target.session is not None else ""
    yield "until", f"{shown(who.expires_at)}{renewed}" if who.expires_at else "without an end"

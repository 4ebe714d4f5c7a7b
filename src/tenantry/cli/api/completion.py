"""Ids for the shell's completion: what the service has, with its names; nothing and not a word where it fails."""

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from click.shell_completion import CompletionItem

from tenantry.cli.api.client import PAGE, Api
from tenantry.cli.api.target import Flags, Surroundings, Target
from tenantry.cli.text import printable
from tenantry_sdk import Tenantry

_SECONDS: Final = 2.0
_LISTS: Final[dict[str, Callable[[Tenantry], Any]]] = {
    "active keys": lambda client: client.api_keys.list(status="active", limit=PAGE),
    "keys": lambda client: client.api_keys.list(limit=PAGE),
    "projects": lambda client: client.projects.list(limit=PAGE),
    "tenants": lambda client: client.tenants.list(limit=PAGE),
    "members": lambda client: client.members.list(limit=PAGE),
    "memberships": lambda client: client.memberships.list(limit=PAGE),
    "invitations": lambda client: client.memberships.list(status="invited", limit=PAGE),
    "events": lambda client: client.billing.events.list(limit=PAGE),
    "plans": lambda client: client.plans.list(),
}


def ids(kind: str, flags: Flags, incomplete: str, taken: Sequence[str] = ()) -> list[CompletionItem]:
    """The newest ids of this kind that begin so, but for those ``taken`` already. Takes two seconds at most."""
    silence = io.StringIO()
    try:
        with contextlib.redirect_stderr(silence), contextlib.redirect_stdout(silence):
            target = _without_renewal(Surroundings(flags, os.environ).target())
            with Api(target, as_json=True, timeout=_SECONDS, attempts=1) as api:
                items = _LISTS[kind](api.client).first_page().data
    except (Exception, SystemExit):  # noqa: BLE001  # whoever presses Tab cannot do anything about it
        return []
    return [
        CompletionItem(printable(item.id), help=_help(item))
        for item in items
        if item.id.startswith(incomplete) and item.id not in taken
    ]


def _without_renewal(target: Target) -> Target:
    """The same with the token at hand, be it over: to renew one takes longer than anybody waits for a completion."""
    if target.session is None:
        return target
    token = target.sessions.tokens(target.session).load()
    return target if token is None else target._replace(key=token.access_token, session=None)


def _help(item: Any) -> str:  # noqa: ANN401  # any of the SDK's records
    """The name beside an id. Names of older objects may contain what a terminal obeys."""
    names = (getattr(item, field, None) for field in ("name", "org_name", "user_id", "type"))
    return printable(str(next(filter(None, names), "")))

"""The one page that shows a key's secret, and what tells whether the key is used."""

import json
import shlex
from datetime import datetime
from typing import NamedTuple

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from tenantry.auth.api_keys import NewKey
from tenantry.dashboard.api_keys.desk import ONE, Desk, KeyId, status_of
from tenantry.dashboard.visitor import SignedIn, Visitor
from tenantry.domain.errors import IdempotencyReplayError


class Line(NamedTuple):
    """Something ready to be copied."""

    label: str
    text: str


class Replaced(NamedTuple):
    """A key that another has taken the place of, and when it ends; None where it has ended."""

    id: str
    ends: datetime | None


def secret_page(desk: Desk, visitor: Visitor, made: NewKey, old: Replaced | None = None) -> Response[str]:
    """The answer that makes a key, and the only one that shows its secret. ``old`` is the key that it replaces."""
    return desk.page(
        "api_key_secret.html",
        visitor,
        key=made.record,
        secret=made.secret,
        lines=ready_made(desk.base_url, desk.look.command, made.secret),
        old=old,
    )


def shown_before(desk: Desk, visitor: Visitor, error: IdempotencyReplayError) -> Response[str]:
    """What a form answers that is sent again."""
    return desk.page("api_key_shown_before.html", visitor, status_of(error), key_id=error.object_id)


def use_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The route that tells whether a key is used."""

    @get(ONE + "/first-use", guards=[desk.door.needs("api-keys:read")])
    async def show_first_use(visitor: SignedIn, key_id: KeyId) -> Response[str]:
        return desk.page("api_key_first_use.html", visitor, key=await desk.keys.get(visitor.principal, key_id))

    return [show_first_use]


def ready_made(base_url: str, command: str, secret: str) -> tuple[Line, ...]:
    """The first request of a key, for each way to send it; ``command`` runs ``tenantry``.

    A program reads the secret from the environment, where it belongs.
    """
    address = shlex.quote(f"{base_url}/api/v1/auth/whoami")
    return (
        Line("curl", f'curl -H "Authorization: Bearer {secret}" {address}'),
        Line(
            "Command line",
            f"export TENANTRY_BASE_URL={shlex.quote(base_url)}\nexport TENANTRY_API_KEY={secret}\n{command} whoami",
        ),
        Line(
            "Python, with the secret in TENANTRY_API_KEY",
            "from tenantry_sdk import Tenantry\n\n"
            f"with Tenantry(base_url={json.dumps(base_url)}) as tenantry:\n"
            "    print(tenantry.auth.whoami())",
        ),
    )

"""What the pages of API keys share: the key, its one-time secret, and refusals."""

import json
import shlex
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from tenantry.auth.api_keys import ApiKeyService, NewKey
from tenantry.common.clock import Clock
from tenantry.dashboard.api_key_forms import in_words as scope_in_words
from tenantry.dashboard.guards import ORG, SessionGuard, SignedIn, Visitor
from tenantry.dashboard.renderer import Renderer
from tenantry.domain.access import AccessLevel
from tenantry.domain.api_keys import ApiKey, KeyStatus
from tenantry.domain.errors import (
    DomainError,
    IdempotencyInFlightError,
    IdempotencyReplayError,
    KeyLimitReachedError,
    KeyNotActiveError,
    LastOwnerError,
    ModeMismatchError,
    ScopeEscalationError,
)
from tenantry.domain.plans import Catalog
from tenantry.server.problems import STATUSES

SECTION: Final = "/settings/api-keys"
PATH: Final = ORG + SECTION
ONE: Final = PATH + "/{key_id:str}"
KeyId = FromPath[str]


class Desk(msgspec.Struct, frozen=True):
    """What the pages are made of."""

    keys: ApiKeyService
    door: SessionGuard
    look: Renderer
    base_url: str
    clock: Clock
    catalog: Catalog

    def page(self, template: str, visitor: Visitor, status_code: int = 200, **context: object) -> Response[str]:
        """A page of this section."""
        return self.look.page(
            template,
            status_code=status_code,
            headers=None,
            visitor=visitor,
            section=SECTION,
            now=self.clock(),
            scope_in_words=scope_in_words,
            may_touch=lambda key: may_touch(visitor, key),
            may_replace=lambda key: may_replace(visitor, key),
            **context,
        )

    async def changeable(self, visitor: Visitor, key_id: str) -> ApiKey:
        """A key that the visitor may change.

        Raises `NotFoundError`, `ScopeEscalationError` and `KeyNotActiveError`.
        """
        key = await self.keys.get(visitor.principal, key_id)
        visitor.principal.require_holding((), key.access_level)
        if key.status is not KeyStatus.ACTIVE:
            raise KeyNotActiveError(f"The key is {key.status}.")
        return key

    async def replaceable(self, visitor: Visitor, key_id: str) -> ApiKey:
        """A leaked key that the visitor may replace.

        Raises `NotFoundError`, `ScopeEscalationError` and `KeyNotActiveError`.
        """
        key = await self.keys.get(visitor.principal, key_id)
        visitor.principal.require_holding((), key.access_level)
        if key.leak_reported_at is None or key.superseded_by is not None:
            raise KeyNotActiveError("The key was not reported as leaked, or has been replaced before.")
        return key

    def refused(self, visitor: Visitor, error: DomainError, key_id: str | None = None) -> Response[str]:
        """A page about one of `REFUSALS`."""
        return self.page(
            "api_key_refused.html",
            visitor,
            status_of(error),
            title=title_of(error),
            message=in_words(error),
            key_id=key_id,
        )

    def path_of(self, visitor: Visitor, key_id: str) -> str:
        """Where a key's own page is."""
        return f"{visitor.base}{SECTION}/{key_id}"


def may_touch(visitor: Visitor, key: ApiKey) -> bool:
    """Whether to offer changes of a key; the service decides about them."""
    return key.status is KeyStatus.ACTIVE and _may_write(visitor, key)


def may_replace(visitor: Visitor, key: ApiKey) -> bool:
    """Whether to offer a replacement of a leaked key; the service decides about it."""
    return key.leak_reported_at is not None and key.superseded_by is None and _may_write(visitor, key)


def _may_write(visitor: Visitor, key: ApiKey) -> bool:
    owns = key.access_level is not AccessLevel.OWNER or visitor.principal.access_level is AccessLevel.OWNER
    return owns and visitor.may("api-keys:write")


def status_of(error: DomainError) -> int:
    """The HTTP status of a refusal, as the API answers it."""
    return STATUSES[type(error)]


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


class Told(NamedTuple):
    """A refusal's heading, and what can be done."""

    title: str
    way_out: str


_TOLD: Final[dict[type[DomainError], Told]] = {
    ScopeEscalationError: Told(
        "You may not do this", "Nobody gives a key more than they hold themselves. Ask an owner of the organization."
    ),
    ModeMismatchError: Told("You may not do this", "Ask somebody who acts in live mode."),
    KeyLimitReachedError: Told(
        "No more keys on this plan", "Revoke a key that nothing uses any more, or change to a plan that allows more."
    ),
    KeyNotActiveError: Told("This key cannot be changed", "The key's page says how it stands."),
    LastOwnerError: Told(
        "This is the last OWNER key",
        "Create another OWNER key, rotate this one, or make a member the owner first. Without any of these, nobody "
        "could make an OWNER key again but the operator of this service.",
    ),
    IdempotencyInFlightError: Told(
        "This was sent twice", "The first time is still being carried out. Look at the list of keys in a moment."
    ),
}
REFUSALS: Final = tuple(_TOLD)
_DETAILS_OF_THE_API: Final = (LastOwnerError, IdempotencyInFlightError)


def in_words(error: DomainError) -> str:
    """One of `REFUSALS`, as a paragraph."""
    way_out = _TOLD[type(error)].way_out
    # what these say themselves is about parameters and headers
    return way_out if isinstance(error, _DETAILS_OF_THE_API) else f"{error.detail} {way_out}"


def title_of(error: DomainError) -> str:
    """The heading over one of `REFUSALS`."""
    return _TOLD[type(error)].title

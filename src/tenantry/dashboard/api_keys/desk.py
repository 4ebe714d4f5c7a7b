"""What the pages of API keys share."""

from typing import Final

import msgspec
from litestar import Response
from litestar.params import FromPath

from tenantry.auth.api_keys import ApiKeyService
from tenantry.common.clock import Clock
from tenantry.dashboard.api_keys.refusals import in_words, title_of
from tenantry.dashboard.api_keys.scopes import in_words as scope_in_words
from tenantry.dashboard.look import Look
from tenantry.dashboard.visitor import ORG, Door, Visitor
from tenantry.domain.access import AccessLevel
from tenantry.domain.api_keys import ApiKey, KeyStatus
from tenantry.domain.errors import DomainError, KeyNotActiveError
from tenantry.domain.plans import Catalog
from tenantry.server.problems import STATUSES

SECTION: Final = "/settings/api-keys"
PATH: Final = ORG + SECTION
ONE: Final = PATH + "/{key_id:str}"
KeyId = FromPath[str]


class Desk(msgspec.Struct, frozen=True):
    """What the pages are made of."""

    keys: ApiKeyService
    door: Door
    look: Look
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

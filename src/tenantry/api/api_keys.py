"""Routes of API keys, and of leak reports."""

from datetime import timedelta
from typing import Annotated, Final

import msgspec
from litestar import Response, delete, get, patch, post
from litestar.params import JSONBody, QueryParameter

from tenantry.api.guards import Caller, ChangeAuthor, IdempotencyClaim, needs, raises
from tenantry.api.parameters import (
    DEFAULT_LIMIT,
    Cursor,
    Limit,
    OrgId,
    Reason,
    check_texts,
    path_parameter,
)
from tenantry.api.services import Services
from tenantry.auth.api_keys import NewKey
from tenantry.auth.api_keys_store import KeyFilter
from tenantry.auth.leak_reports import EndedKey
from tenantry.common.encoding import doc
from tenantry.db.pagination import Page
from tenantry.domain.api_keys import (
    MAX_OVERLAP_SECONDS,
    ApiKey,
    ApiKeyWithSecret,
    KeyChanges,
    KeyStatus,
    KeyTerms,
)
from tenantry.domain.key_metadata import LONGEST_EXTERNAL_ID, check_external_id
from tenantry.domain.names import VISIBLE

PATH: Final = "/api/v1/api-keys"
LEAK_REPORT_PATH: Final = "/api/v1/api-keys/report-leak"
_LONGEST: Final = 1000


KeyId = Annotated[str, path_parameter("The key's id.", "key_01975c3a51c2a1b3c5d7e9f10213a5b7")]


class NewApiKey(KeyTerms, frozen=True, kw_only=True):
    """A key to create."""

    org_id: Annotated[OrgId, doc("The caller's tenant.", "acme")]


class ApiKeyChange(KeyChanges, frozen=True):
    """The changes to an active key; absent fields stay as they are."""


class Rotation(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """How to rotate a key."""

    overlap_seconds: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=MAX_OVERLAP_SECONDS,
            description="How long the old key keeps working, in seconds; at most a week.",
            examples=[3600],
        ),
    ] = 0


class LeakReport(msgspec.Struct, forbid_unknown_fields=True):
    """A leaked key."""

    secret: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=_LONGEST,
            description="The whole key. Surrounding white space is ignored.",
            examples=["svc_live_4fGhT0...x9Qz"],
        ),
    ]


@post(
    PATH,
    guards=[needs("api-keys:write")],
    summary="Create an API key",
    opt=raises(
        "org_mismatch",
        "scope_escalation",
        "mode_mismatch",
        "key_limit_reached",
        "idempotency_replay",
    ),
)
async def create_api_key(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    data: JSONBody[NewApiKey],
) -> Response[ApiKeyWithSecret]:
    """Create a key.

    Only this answer contains its `secret`: store it now. `accessLevel: OWNER`, or the
    single scope `OWNER`, creates a key that may do everything; only an OWNER can create one. A
    key cannot create a key that outlives it.
    """
    principal.require_org(data.org_id)
    made = await services.api_keys.create(
        principal,
        author,
        data,
        claim=claim,
    )
    return _shown_once(made)


@get(
    PATH,
    guards=[needs("api-keys:read")],
    summary="List API keys",
    opt=raises("org_mismatch"),
)
async def list_api_keys(
    services: Services,
    principal: Caller,
    org_id: Annotated[
        str | None, QueryParameter(name="orgId", description="The caller's own organization.")
    ] = None,
    status: Annotated[
        KeyStatus | None,
        QueryParameter(
            name="status",
            description="Only keys of this status; `active` includes rotated keys until their overlap ends.",
        ),
    ] = None,
    search: Annotated[
        str | None,
        QueryParameter(
            name="search",
            max_length=200,
            description="Only keys with this in their name, id, `externalId`, or shown characters, such as "
            "`svc_live_AbCd`, `wxyz` or `AbCd...wxyz`; upper and lower case are the same. Never send a whole secret.",
        ),
    ] = None,
    external_id: Annotated[
        str | None,
        QueryParameter(
            name="externalId",
            min_length=1,
            max_length=LONGEST_EXTERNAL_ID,
            pattern=VISIBLE,
            description="Only keys with exactly this `externalId`.",
        ),
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[ApiKey]:
    """List the tenant's keys, newest first, without their secrets. A test-mode caller sees
    test-mode keys only.
    """
    if org_id is not None:
        principal.require_org(org_id)
    check_texts({"search": search})
    services.api_keys.key_format.check_search(search or "")
    check_external_id(external_id)
    wanted = KeyFilter(status=status, search=search, external_id=external_id)
    return await services.api_keys.list_page(
        principal,
        wanted,
        limit,
        cursor,
    )


@get(PATH + "/{key_id:str}", guards=[needs("api-keys:read")], summary="Get an API key")
async def get_api_key(services: Services, principal: Caller, key_id: KeyId) -> ApiKey:
    """Return one of the tenant's keys, without its secret."""
    return await services.api_keys.get(principal, key_id)


@patch(
    PATH + "/{key_id:str}",
    guards=[needs("api-keys:write")],
    summary="Change an API key",
    opt=raises("scope_escalation", "key_not_active", "last_owner"),
)
async def update_api_key(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    key_id: KeyId,
    data: JSONBody[ApiKeyChange],
) -> ApiKey:
    """Change the given fields of an active key. A null `expiresAt` means that the key never
    expires. `metadata` replaces all of it.
    """
    return await services.api_keys.update(
        principal,
        author,
        key_id,
        data,
    )


@delete(
    PATH + "/{key_id:str}",
    guards=[needs("api-keys:write")],
    summary="Revoke an API key",
    opt=raises("scope_escalation", "last_owner"),
)
async def delete_api_key(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    key_id: KeyId,
    *,
    force: Annotated[
        bool,
        QueryParameter(
            name="force", description="Also the last OWNER key of a tenant without an owner."
        ),
    ] = False,
    reason: Reason = None,
) -> None:
    """Revoke the key.

    After this answer every process rejects requests with it. Revoking a revoked key succeeds.
    The record stays, with `status: revoked`. If no member owns the tenant, its last OWNER key
    needs `force=true`.
    """
    await services.api_keys.revoke(
        principal,
        author.because(reason),
        key_id,
        force=force,
    )


@post(
    PATH + "/{key_id:str}/rotate",
    guards=[needs("api-keys:write")],
    summary="Rotate an API key",
    opt=raises(
        "scope_escalation",
        "mode_mismatch",
        "key_not_active",
        "key_limit_reached",
        "idempotency_replay",
    ),
)
async def rotate_api_key(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    key_id: KeyId,
    data: JSONBody[Rotation | None] = None,
) -> Response[ApiKeyWithSecret]:
    """Create a key with the same name, scopes, level, mode, expiry, and optional fields, such as
    `allowedAddresses`.

    The old key ends after `overlapSeconds`, by default immediately, and never later than
    its expiry. `rotatedFrom` names it. Only this answer contains the new `secret`.
    """
    overlap = timedelta(seconds=(data or Rotation()).overlap_seconds)
    return _shown_once(
        await services.api_keys.rotate(
            principal,
            author,
            key_id,
            overlap=overlap,
            claim=claim,
        )
    )


@post(
    LEAK_REPORT_PATH,
    status_code=200,
    opt={"public": True, **raises("not_found", "database_unavailable")},
    summary="Report a leaked API key",
)
async def report_leaked_key(
    services: Services, author: ChangeAuthor, data: JSONBody[LeakReport]
) -> Response[EndedKey]:
    """Revoke a leaked key.

    Any client can report one, without a credential. tenantry revokes the key immediately, also
    in a suspended tenant, and mails the owner once. Reporting it again succeeds. A key that
    replaced it by rotation stays active.
    """
    ended = await services.leaks.report(author, data.secret)
    return Response(ended, headers={"Cache-Control": "no-store"})


def _shown_once(made: NewKey) -> Response[ApiKeyWithSecret]:
    body = ApiKeyWithSecret(secret=made.secret, **msgspec.structs.asdict(made.record))
    return Response(
        body, headers={"Location": f"{PATH}/{made.record.id}", "Cache-Control": "no-store"}
    )

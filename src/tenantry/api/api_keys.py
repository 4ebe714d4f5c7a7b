"""Routes of API keys, and of leak reports."""

from datetime import timedelta
from typing import Annotated, Final

import msgspec
from litestar import Response, delete, get, patch, post
from litestar.params import JSONBody, QueryParameter
from msgspec import UNSET, UnsetType

from tenantry.api.guards import Caller, ChangeAuthor, IdempotencyClaim, needs, raises
from tenantry.api.parameters import (
    DEFAULT_LIMIT,
    VISIBLE,
    Cursor,
    ExpiresAt,
    ExternalId,
    Limit,
    Metadata,
    Name,
    OrgId,
    ScopeName,
    nul_faults,
    path_parameter,
)
from tenantry.api.services import Services
from tenantry.auth.api_keys import NewKey
from tenantry.auth.api_keys_store import KeyFilter
from tenantry.auth.leak_reports import EndedKey
from tenantry.common.encoding import doc
from tenantry.db.pagination import Page
from tenantry.domain.api_keys import MAX_OVERLAP_SECONDS, ApiKey, KeyStatus
from tenantry.domain.errors import ValidationError
from tenantry.domain.key_metadata import LONGEST_EXTERNAL_ID, check_key_metadata
from tenantry.domain.permissions import AccessLevel, Mode
from tenantry.domain.scopes import MAX_SCOPES

PATH: Final = "/api/v1/api-keys"
LEAK_REPORT_PATH: Final = "/api/v1/api-keys/report-leak"
_LONGEST: Final = 1000


Scopes = Annotated[list[ScopeName], msgspec.Meta(max_length=MAX_SCOPES)]
KeyId = Annotated[str, path_parameter("The key's id.", "key_01975c3a51c2a1b3c5d7e9f10213a5b7")]


class NewApiKey(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A key to create."""

    org_id: Annotated[OrgId, doc("The caller's tenant.", "acme")]
    name: Annotated[Name, doc(example="CI deploys")]
    scopes: Annotated[
        Scopes,
        doc(
            "What the key may do: `<resource>:<action>`, where either part may be `*`. `OWNER` excludes other scopes.",
            ["projects:read", "projects:write"],
        ),
    ]
    expires_at: Annotated[
        ExpiresAt | None,
        doc(
            "When the key expires, in the future; null or absent for never.", "2099-11-01T00:00:00Z"
        ),
    ] = None
    access_level: Annotated[
        AccessLevel | None,
        doc("`OWNER` for a key that may do everything; `scopes` must be empty then."),
    ] = None
    mode: Annotated[
        Mode | None,
        doc("The caller's mode by default. A test-mode key creates test-mode keys only."),
    ] = None
    external_id: ExternalId | None = None
    metadata: Metadata | None = None


class ApiKeyChange(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The changes to an active key; absent fields stay as they are."""

    name: Annotated[Name | UnsetType, doc(example="CI deploys (main)")] = UNSET
    scopes: Annotated[
        Scopes | UnsetType, doc("The complete new list of scopes.", ["projects:read"])
    ] = UNSET
    expires_at: Annotated[
        ExpiresAt | UnsetType | None, doc("When the key expires, in the future; null for never.")
    ] = UNSET
    external_id: Annotated[
        ExternalId | UnsetType | None,
        doc("The id that another system of yours gives the key; null removes it."),
    ] = UNSET
    metadata: Annotated[
        Metadata | UnsetType | None, doc("The complete new metadata; null or empty removes all.")
    ] = UNSET


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


class ApiKeyWithSecret(ApiKey, frozen=True, rename="camel", kw_only=True):
    """A new key with its secret, which is shown only once."""

    secret: Annotated[
        str, doc("The key itself. Only this answer contains it.", "svc_live_4fGhT0...x9Qz")
    ]


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
        name=data.name,
        scopes=tuple(data.scopes),
        access_level=data.access_level,
        mode=data.mode,
        expires_at=data.expires_at,
        claim=claim,
        external_id=data.external_id,
        metadata=data.metadata,
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
    if faults := nul_faults({"search": search}):
        raise ValidationError(*faults)
    services.api_keys.key_format.check_search(search or "")
    check_key_metadata(external_id, None)
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
    scopes = data.scopes if data.scopes is UNSET else tuple(data.scopes)
    return await services.api_keys.update(
        principal,
        author,
        key_id,
        name=data.name,
        scopes=scopes,
        expires_at=data.expires_at,
        external_id=data.external_id,
        metadata=data.metadata,
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
) -> None:
    """Revoke the key.

    After this answer every process rejects requests with it. Revoking a revoked key succeeds.
    The record stays, with `status: revoked`. If no member owns the tenant, its last OWNER key
    needs `force=true`.
    """
    await services.api_keys.revoke(
        principal,
        author,
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
    """Create a key with the same name, scopes, level, mode, expiry, `externalId` and `metadata`.

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

"""The operator's import of API keys that another system made."""

from datetime import datetime
from typing import Annotated, Final

import msgspec
from litestar import post
from litestar.params import JSONBody

from tenantry.api.api_keys import Scopes
from tenantry.api.guards import MOST_MEMBERS, ChangeAuthor, needs_operator
from tenantry.api.parameters import VISIBLE, ExpiresAt, ExternalId, Metadata, Name
from tenantry.api.services import Services
from tenantry.api.tenants import PATH as TENANTS
from tenantry.api.tenants import TenantId
from tenantry.auth.key_import import ImportedKey, KeyToImport
from tenantry.common.encoding import doc
from tenantry.domain.imported_keys import (
    LONGEST_LAST4,
    LONGEST_START,
    MAX_IMPORTED_KEYS,
    HashAlgorithm,
)
from tenantry.domain.permissions import AccessLevel, Mode
from tenantry.server.repeated_items import MAX_IMPORT_MEMBERS

PATH: Final = TENANTS + "/{tenant_id:str}/api-keys/import"
# Longer than every hash, also those of passwords: their refusal says more than the length.
_LONGEST_DIGEST: Final = 500
_LONGEST_ALGORITHM: Final = 100


_CreatedAt = Annotated[datetime, msgspec.Meta(tz=True)]


class ApiKeyToImport(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A key that another system made."""

    digest: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=_LONGEST_DIGEST,
            description="The hash of the whole key: hex, base64 or base64url, with or without padding.",
            examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
        ),
    ]
    name: Annotated[Name, doc(example="CI deploys")]
    scopes: Annotated[
        Scopes,
        doc(
            "What the key may do: `<resource>:<action>`, where either part may be `*`. `OWNER` excludes other scopes.",
            ["projects:read"],
        ),
    ] = []
    access_level: Annotated[
        AccessLevel | None,
        doc("`OWNER` for a key that may do everything; `scopes` must be empty then."),
    ] = None
    mode: Annotated[Mode, doc("Live or test.")] = Mode.LIVE
    expires_at: Annotated[
        ExpiresAt | None, doc("When the key expires; null or absent for never. It may be past.")
    ] = None
    created_at: Annotated[
        _CreatedAt | None, doc("When the other system made it; null or absent for now.")
    ] = None
    external_id: ExternalId | None = None
    metadata: Metadata | None = None
    start: Annotated[
        str,
        msgspec.Meta(
            max_length=LONGEST_START,
            pattern=VISIBLE,
            description="The first characters of the key, to tell keys apart. Not more than people may see.",
            examples=["sk_4fGh"],
        ),
    ] = ""
    last4: Annotated[
        str,
        msgspec.Meta(
            max_length=LONGEST_LAST4,
            pattern=VISIBLE,
            description="The last characters of the key, for the same purpose.",
            examples=["x9Qz"],
        ),
    ] = ""


class KeyImport(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Keys to import."""

    algorithm: Annotated[
        str,
        msgspec.Meta(
            max_length=_LONGEST_ALGORITHM,
            description="How the other system hashes its keys: the whole key, without a salt.",
            extra_json_schema={"enum": list(HashAlgorithm)},
        ),
    ]
    keys: Annotated[
        list[ApiKeyToImport],
        msgspec.Meta(
            min_length=1,
            max_length=MAX_IMPORTED_KEYS,
            description=f"At most {MAX_IMPORTED_KEYS:,} keys; each hash and each `externalId` once.",
        ),
    ]


class ImportResult(msgspec.Struct, frozen=True):
    """The results of an import."""

    data: Annotated[list[ImportedKey], doc("A result for each key, in the order of the request.")]


@post(
    PATH,
    status_code=200,
    guards=[needs_operator()],
    summary="Import API keys (operator)",
    opt={MOST_MEMBERS: MAX_IMPORT_MEMBERS},
)
async def import_api_keys(
    services: Services, author: ChangeAuthor, tenant_id: TenantId, data: JSONBody[KeyImport]
) -> ImportResult:
    """Import keys of another system into a tenant, by their hashes.

    The holders keep their keys, which must match `IMPORTED_KEY_PATTERN`. At its first
    use an imported key becomes like every other one; until then `importedAs` names its algorithm.

    An error names the faulty key, and nothing is imported. A repeated request imports nothing
    twice: a key is recognized by its `externalId`, or without one by its hash. No hash is
    imported twice, whether its key was used or revoked. The plan's limit of keys does not apply,
    but imported keys count for it.
    """
    keys = [to_import(key) for key in data.keys]
    results = await services.key_import.import_keys(author, tenant_id, data.algorithm, keys)
    return ImportResult(results)


def to_import(key: ApiKeyToImport) -> KeyToImport:
    """Return the key of a request, or of a file, as the use case takes it."""
    return KeyToImport(
        digest=key.digest,
        name=key.name,
        scopes=tuple(key.scopes),
        access_level=key.access_level,
        mode=key.mode,
        expires_at=key.expires_at,
        created_at=key.created_at,
        external_id=key.external_id,
        metadata=key.metadata,
        start=key.start,
        last4=key.last4,
    )

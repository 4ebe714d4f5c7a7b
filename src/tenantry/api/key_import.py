"""The operator's import of API keys that another system made."""

from typing import Annotated, Final

import msgspec
from litestar import post
from litestar.params import JSONBody

from tenantry.api.guards import MOST_MEMBERS, ChangeAuthor, needs_operator
from tenantry.api.services import Services
from tenantry.api.tenants import PATH as TENANTS
from tenantry.api.tenants import TenantId
from tenantry.common.encoding import doc
from tenantry.domain.imported_keys import (
    MAX_IMPORTED_KEYS,
    HashAlgorithm,
)
from tenantry.domain.key_import import ApiKeyToImport, ImportedKey, ImportStatus
from tenantry.server.repeated_items import MAX_IMPORT_MEMBERS

PATH: Final = TENANTS + "/{tenant_id:str}/api-keys/import"
_LONGEST_ALGORITHM: Final = 100


class KeyImport(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Keys to import."""

    algorithm: Annotated[
        str,
        msgspec.Meta(
            max_length=_LONGEST_ALGORITHM,
            description="How the other system hashes its keys: the whole key, or the part that "
            "`IMPORTED_KEY_PATTERN` names, without a salt.",
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


class ImportPreview(msgspec.Struct, frozen=True):
    """What an import would do."""

    data: Annotated[
        list[ImportStatus],
        doc("What would become of each key, in the order of the request.", ["created"]),
    ]


@post(
    f"{TENANTS}/{{tenant_id:str}}/api-keys/preview-import",
    status_code=200,
    guards=[needs_operator()],
    summary="Preview an import of API keys (operator)",
    opt={MOST_MEMBERS: MAX_IMPORT_MEMBERS},
)
async def preview_import(
    services: Services, tenant_id: TenantId, data: JSONBody[KeyImport]
) -> ImportPreview:
    """Check what an import of these keys would do, and import nothing. Errors are those of the
    import.
    """
    statuses = await services.key_import.preview(tenant_id, data.algorithm, data.keys)
    return ImportPreview(statuses)


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
    results = await services.key_import.import_keys(author, tenant_id, data.algorithm, data.keys)
    return ImportResult(results)

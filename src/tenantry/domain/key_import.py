"""The import of keys that another system made: what is given for each, and its result."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain.api_keys import ExpiresAt, KeyTerms
from tenantry.domain.imported_keys import LONGEST_LAST4, LONGEST_START
from tenantry.domain.names import VISIBLE
from tenantry.domain.permissions import Mode
from tenantry.domain.scopes import Scopes

# Longer than every hash, also those of passwords: their refusal says more than the length.
_LONGEST_DIGEST: Final = 500


_CreatedAt = Annotated[datetime, msgspec.Meta(tz=True)]


class ApiKeyToImport(KeyTerms, frozen=True, kw_only=True):
    """A key that another system made."""

    digest: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=_LONGEST_DIGEST,
            description="The hash of the whole key, or of the group `secret` of `IMPORTED_KEY_PATTERN`: hex, base64 "
            "or base64url, with or without padding.",
            examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
        ),
    ]
    scopes: Annotated[
        Scopes,
        doc(
            "What the key may do: `<resource>:<action>`, where either part may be `*`. `OWNER` excludes other scopes.",
            ["projects:read"],
        ),
    ] = ()
    mode: Annotated[Mode, doc("Live or test.")] = Mode.LIVE
    expires_at: Annotated[
        ExpiresAt | None, doc("When the key expires; null or absent for never. It may be past.")
    ] = None
    created_at: Annotated[
        _CreatedAt | None, doc("When the other system made it; null or absent for now.")
    ] = None
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


class ImportStatus(StrEnum):
    CREATED = "created"
    EXISTS = "exists"
    """The tenant has an imported key with this external id, or without one with this hash."""
    DIGEST_TAKEN = "digest_taken"
    """Another key was imported with this hash."""


class ImportedKey(msgspec.Struct, frozen=True, rename="camel"):
    """The result for one key of an import."""

    external_id: Annotated[str | None, doc("The `externalId` that was sent.", "cus_4711")]
    id: Annotated[
        str,
        doc(
            "The id of the new key, or of the key that was there before.",
            "key_01975c3a51c2a1b3c5d7e9f10213a5b7",
        ),
    ]
    status: Annotated[
        ImportStatus,
        doc(
            "`exists`: the tenant's key with this `externalId` was imported before, and is unchanged. "
            "`digest_taken`: another key, of any tenant, was imported with this hash.",
            "created",
        ),
    ]


class ImportedKeyCounts(msgspec.Struct, frozen=True, rename="camel"):
    """The numbers of a tenant's imported keys."""

    org_id: Annotated[str, doc("The tenant.", "acme")]
    used: Annotated[int, doc("How many were used.", 40)]
    unused: Annotated[int, doc("How many are active, and were not used yet.", 2)]
    ended: Annotated[int, doc("How many ended without a use.", 0)]

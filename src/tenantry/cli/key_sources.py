"""What other systems export of a key, translated to the form of ``import-keys --from jsonl``.

That form is a key of the API's import, with ``orgId``, ``algorithm`` and, for a key in plain text,
``key`` in place of ``digest``.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import ValidationError
from tenantry.domain.imported_keys import LONGEST_START

_Fields = Mapping[str, Any]
_LATEST_SECONDS: Final = 100_000_000_000
"""A number beyond this one is of milliseconds."""
_FLAGS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}


class KeySource(StrEnum):
    """The systems whose exports can be read."""

    DRF = "drf"
    BETTER_AUTH = "better-auth"
    UNKEY = "unkey"
    JSONL = "jsonl"


class SkippedKeyError(Exception):
    """A key that is not to be imported, and why."""


def translate(source: KeySource, fields: _Fields, org_field: str | None) -> dict[str, Any]:
    """Return a key in the form of ``--from jsonl``, without what is absent; ``org_field`` is the
    field that names its tenant.

    Raises `SkippedKeyError` for a key that does not work any more, and `ValidationError`.
    """
    reader = _SOURCES[source]
    row = reader.unpack(fields)
    translated = reader.translate(row)
    org_id = row.get(org_field, fields.get(org_field)) if org_field else None
    if org_id is not None:
        translated["orgId"] = str(org_id)
    return {name: value for name, value in translated.items() if value is not None}


def stores_plaintext(source: KeySource) -> bool:
    """Whether a system can store keys in plain text."""
    return source is not KeySource.DRF


def _jsonl(fields: _Fields) -> dict[str, Any]:
    """Return a key as it is; a CSV file has scopes with blanks between them, and metadata as
    JSON.
    """
    key = dict(fields)
    if isinstance(scopes := key.get("scopes"), str):
        key["scopes"] = scopes.split()
    if isinstance(key.get("metadata"), str):
        key["metadata"] = _parsed("metadata", key)
    return key


def _of_dumpdata(fields: _Fields) -> _Fields:
    """Return the columns of a row, also of ``manage.py dumpdata``."""
    if "model" not in fields:
        return fields
    columns: _Fields = fields.get("fields") or {}
    if "hashed_key" not in columns:
        raise SkippedKeyError("another model")
    return columns


def _drf(columns: _Fields) -> dict[str, Any]:
    """Translate a row of djangorestframework-api-key.

    Its own id contains the hash, so the prefix, which is unique too, is the external id.
    """
    if columns.get("revoked") is None:  # in every row of the table
        raise ValidationError(("revoked", "is missing: a revoked key would work again"))
    _skip_if("revoked", _flag("revoked", columns, default=False))
    hashed = str(columns.get("hashed_key", ""))
    algorithm, separator, digest = hashed.partition("$$")
    return {
        "algorithm": algorithm if separator else None,
        "digest": digest if separator else hashed or None,
        "name": columns.get("name"),
        "externalId": columns.get("prefix"),
        "start": columns.get("prefix"),
        "createdAt": _moment("created", columns),
        "expiresAt": _moment("expiry_date", columns),
    }


def _better_auth(columns: _Fields) -> dict[str, Any]:
    """Translate a row of better-auth's table ``apikey``; its column ``key`` has the hash."""
    _skip_if("disabled", not _flag("enabled", columns, default=True))
    owner = columns.get("referenceId", columns.get("userId"))
    return {
        "digest": columns.get("key"),
        "key": columns.get("key"),
        "name": columns.get("name") or columns.get("start") or columns.get("id"),
        "externalId": columns.get("id"),
        "start": _start(columns),
        "scopes": _scopes_of_actions(columns),
        "metadata": _metadata("metadata", columns, referenceId=owner),
        "createdAt": _moment("createdAt", columns),
        "expiresAt": _moment("expiresAt", columns),
    }


def _unkey(columns: _Fields) -> dict[str, Any]:
    """Translate a key of Unkey's API, or a row of its table ``keys``."""
    _skip_if("disabled", not _flag("enabled", columns, default=True))
    _skip_if("deleted", any(columns.get(name) for name in ("deletedAt", "deletedAtM")))
    digest = columns.get("hash")
    owner = columns.get("externalId") or columns.get("ownerId")
    key_id = columns.get("keyId") or columns.get("id")
    return {
        "digest": digest.get("value") if isinstance(digest, dict) else digest,
        "key": columns.get("plaintext"),
        "name": columns.get("name") or columns.get("start") or key_id,
        "externalId": key_id,
        "start": _start(columns),
        "scopes": _scopes_of_permissions(columns),
        "metadata": _metadata("meta", columns, externalId=owner),
        "createdAt": _moment("createdAt", columns) or _moment("createdAtM", columns),
        "expiresAt": _moment("expires", columns),
    }


def _unkey_columns(fields: _Fields) -> _Fields:
    """Return a key's fields, with the external id of its identity among them."""
    columns = _camel_columns(fields)
    identity = columns.get("identity") or {}
    return {"externalId": identity.get("externalId"), **columns}


def _camel_columns(fields: _Fields) -> _Fields:
    """Return columns with their names in camel case, as some databases have them in snake case."""
    return {_camel(name): value for name, value in fields.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _skip_if(why: str, condition: bool) -> None:  # noqa: FBT001
    if condition:
        raise SkippedKeyError(why)


def _flag(name: str, columns: _Fields, *, default: bool) -> bool:
    """Read a boolean of JSON, or of a database's CSV. Raises `ValidationError` for another value,
    which must not bring a revoked key back to life.
    """
    value = columns.get(name)
    if value is None:
        return default
    flag = _FLAGS.get(str(value).lower())
    if flag is None:
        raise ValidationError((name, "is neither true nor false"))
    return flag


def _start(columns: _Fields) -> str | None:
    start = columns.get("start") or columns.get("prefix")
    return str(start)[:LONGEST_START] if start else None


def _moment(name: str, columns: _Fields) -> datetime | None:
    """Read a time in ISO 8601, in UTC if it names no zone, or in seconds or milliseconds since
    1970.
    """
    value = columns.get(name)
    if value is None:
        return None
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return _parsed_moment(str(value))
    raise ValidationError((name, "is not a time"))


def _parsed_moment(text: str) -> datetime:
    if text.replace(".", "", 1).isdigit():
        number = float(text)
        return datetime.fromtimestamp(number / 1000 if number > _LATEST_SECONDS else number, UTC)
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _parsed(name: str, columns: _Fields) -> Any:  # noqa: ANN401  # any JSON
    """Return a value that is JSON, or a text of JSON, once or twice encoded."""
    value = columns.get(name)
    for _ in range(2):
        if not isinstance(value, str):
            break
        try:
            value = msgspec.json.decode(value)
        except NOT_JSON:
            raise ValidationError((name, "is not JSON")) from None
    return value


def _metadata(name: str, columns: _Fields, **more: object) -> dict[str, str] | None:
    """Return metadata as texts, with ``more`` where it has no such name."""
    found = _parsed(name, columns) or {}
    if not isinstance(found, dict):
        raise ValidationError((name, "is not a JSON object"))
    present = {key: value for key, value in {**more, **found}.items() if value is not None}
    return {key: _text(value) for key, value in present.items()} or None


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _scopes_of_actions(columns: _Fields) -> list[str] | None:
    """Return the scopes of ``{"projects": ["read", "write"]}``."""
    permissions = _parsed("permissions", columns) or {}
    if not isinstance(permissions, dict):
        raise ValidationError(("permissions", "is not a JSON object"))
    return list(_scopes(permissions)) or None


def _scopes(permissions: Mapping[str, Any]) -> Iterator[str]:
    for resource, actions in permissions.items():
        if not isinstance(actions, list):
            raise ValidationError(("permissions", "has no list of actions for each resource"))
        yield from (f"{resource}:{action}" for action in actions)


def _scopes_of_permissions(columns: _Fields) -> list[str] | None:
    """Return the scopes of permissions such as ``projects.read``."""
    permissions = _parsed("permissions", columns) or []
    if not isinstance(permissions, list):
        raise ValidationError(("permissions", "is not a list"))
    return [_scope(str(permission)) for permission in permissions] or None


def _scope(permission: str) -> str:
    return permission.replace(".", ":") if permission.count(".") == 1 else permission


class _Reader(NamedTuple):
    unpack: Callable[[_Fields], _Fields]
    translate: Callable[[_Fields], dict[str, Any]]


_SOURCES: Final = {
    KeySource.DRF: _Reader(_of_dumpdata, _drf),
    KeySource.BETTER_AUTH: _Reader(_camel_columns, _better_auth),
    KeySource.UNKEY: _Reader(_unkey_columns, _unkey),
    KeySource.JSONL: _Reader(_jsonl, _jsonl),
}

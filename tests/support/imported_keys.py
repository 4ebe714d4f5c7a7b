"""Keys that another system made, and their import by the operator."""

import base64
import hashlib
import itertools
from typing import Any, Final, NamedTuple

import httpx2

from tests.support.service import TENANTS, Service

IMPORTED_KEY_PATTERN: Final = r"[A-Za-z0-9_.-]{12,200}"
"""Wide, so that a test of a refusal does not pass because of the pattern."""
_numbers = itertools.count()


class OldKey(NamedTuple):
    """A key of another system."""

    secret: str
    algorithm: str = "sha256"

    @property
    def hash(self) -> bytes:
        return hashlib.new(self.algorithm, self.secret.encode()).digest()

    def member(self, **fields: object) -> dict[str, Any]:
        """The key as a member of an import; ``fields`` replace those of a usual one."""
        return {
            "digest": self.hash.hex(),
            "name": "old key",
            "scopes": ["projects:read"],
            **fields,
        }


class SanctumToken(NamedTuple):
    """A key whose table has the hash of all that is behind the first ``|``."""

    secret: str

    def key(self, number: int = 1) -> str:
        return f"{number}|{self.secret}"

    def member(self, algorithm: str = "sha256", **fields: object) -> dict[str, Any]:
        digest = hashlib.new(algorithm, self.secret.encode()).hexdigest()
        return {"digest": digest, "name": "ci", "scopes": ["projects:read"], **fields}


def old_key(algorithm: str = "sha256") -> OldKey:
    """A new key of another system."""
    number = f"{next(_numbers)}".encode()
    return OldKey("old_" + hashlib.sha256(number).hexdigest()[:32], algorithm)


def spellings(value: bytes) -> list[str]:
    """The texts in which other systems store a hash."""
    standard, url_safe = base64.b64encode(value).decode(), base64.urlsafe_b64encode(value).decode()
    return [
        value.hex(),
        value.hex().upper(),
        standard,
        standard.rstrip("="),
        url_safe,
        url_safe.rstrip("="),
    ]


async def import_members(
    service: Service, org_id: str, *members: dict[str, Any], algorithm: str = "sha256"
) -> httpx2.Response:
    """Import keys into a tenant as the operator; return the answer."""
    return await service.operator.post(
        f"{TENANTS}/{org_id}/api-keys/import", {"algorithm": algorithm, "keys": list(members)}
    )


async def imported(
    service: Service, org_id: str, *members: dict[str, Any], algorithm: str = "sha256"
) -> list[dict[str, Any]]:
    """Import keys into a tenant; return the results."""
    answer = await import_members(service, org_id, *members, algorithm=algorithm)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["data"]
    return results


async def import_key(service: Service, org_id: str, key: OldKey, **fields: object) -> str:
    """Import a key that is new to the service; return its id."""
    [result] = await imported(service, org_id, key.member(**fields), algorithm=key.algorithm)
    assert result["status"] == "created", result
    return str(result["id"])

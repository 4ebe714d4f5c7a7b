"""Tenants, keys, members and tokens of a test."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

import httpx2

from tenantry.common.clock import system_clock
from tenantry_devkit.inbox import Mail
from tenantry_devkit.testing.database import Rows
from tenantry_devkit.testing.errors import Credential, RefusedError, Variables, bearer
from tenantry_devkit.testing.provider import LIFETIME, Issuer


class Api:
    """Calls the service, and takes no refusal: raises `RefusedError`."""

    def __init__(self, http: httpx2.Client, operator_token: Credential) -> None:
        self._http = http
        self._operator_token = operator_token

    def call(self, method: str, path: str, credential: Credential, json: object = None) -> Any:  # noqa: ANN401
        """The body of a good answer, None where there is none."""
        response = self._http.request(method, f"/api/v1{path}", headers=bearer(credential), json=json)
        if not response.is_success:
            raise RefusedError(response)
        return response.json() if response.content else None

    def as_operator(self, method: str, path: str, json: object = None) -> Any:  # noqa: ANN401
        """The same with the operator's token."""
        return self.call(method, path, self._operator_token, json)


NO_CLAIMS: Final[Mapping[str, Any]] = MappingProxyType({})


class Parts:
    """What tenants need of the service."""

    def __init__(
        self,
        api: Api,
        issuer: Issuer,
        rows: Rows,
        environment: Variables,
        mails: Callable[["Tenant", float], Sequence[Mail]],
    ) -> None:
        self.api = api
        self.issuer = issuer
        self.rows = rows
        self.environment = environment
        self.mails = mails


class Key:
    """An API key of a tenant; its secret is in `secret`, `headers` and `environment`, which hide it in reports."""

    def __init__(self, tenant: "Tenant", record: Mapping[str, Any], secret: str, parts: Parts) -> None:
        self.tenant = tenant
        self.id = str(record["id"])
        self.secret = Credential(secret)
        """What its holder sends: a string."""
        self._parts = parts

    def __repr__(self) -> str:
        return f"<Key {self.id} of {self.tenant.id}>"

    @property
    def headers(self) -> Variables:
        """The headers of a request by its holder."""
        return bearer(self.secret)

    @property
    def environment(self) -> Variables:
        """The session's `environment`, and ``TENANTRY_API_KEY``."""
        return Variables({**self._parts.environment, "TENANTRY_API_KEY": self.secret})

    @property
    def record(self) -> dict[str, Any]:
        """What the API says of it now."""
        found: dict[str, Any] = self._call("GET")
        return found

    def revoke(self) -> None:
        """Revoke it: the very next request with it is refused."""
        self._call("DELETE")

    def rotate(self, *, overlap_seconds: int = 0) -> "Key":
        """Make its successor; it goes on itself for ``overlap_seconds``."""
        made = self._call("POST", "/rotate", {"overlapSeconds": overlap_seconds})
        return Key(self.tenant, made, made["secret"], self._parts)

    def expire(self) -> None:
        """Let it have expired a second ago, which no request can do: straight in the database."""
        self._parts.rows.expire_key(self.tenant.id, self.id)

    def _call(self, method: str, more: str = "", json: object = None) -> Any:  # noqa: ANN401  # what the API answers
        return self._parts.api.call(method, f"/api-keys/{self.id}{more}", self.tenant.token(), json)


class Member:
    """A user's membership in a tenant, kept with it."""

    def __init__(self, tenant: "Tenant", record: Mapping[str, Any], parts: Parts) -> None:
        self.tenant = tenant
        self.id = str(record["id"])
        self.user = str(record["userId"])
        self._parts = parts

    def __repr__(self) -> str:
        return f"<Member {self.user} of {self.tenant.id}>"

    def token(self, *, scope: str | None = None, expires_in: timedelta | float = LIFETIME) -> Credential:
        """A token of the user that claims no role: the one on record counts."""
        return self.tenant.token(self.user, role=None, scope=scope, expires_in=expires_in)

    def change(self, role: str) -> None:
        """Give the member another role, from the next request on."""
        self._parts.api.call("PATCH", f"/members/{self.id}", self.tenant.token(), {"role": role})

    def remove(self) -> None:
        """Remove the member: the very next request of the user is refused, whatever their token says."""
        self._parts.api.call("DELETE", f"/members/{self.id}", self.tenant.token())


class Tenant:
    """A tenant of a test, as the operator made it. Its properties that say how it is ask the service each time."""

    def __init__(self, tenant_id: str, name: str, owner_email: str, parts: Parts) -> None:
        unique = secrets.token_hex(8)
        self.id = tenant_id
        self.name = name
        self.owner = f"owner-of-{tenant_id}"
        """The owner, as the identity provider calls them."""
        self.owner_email = owner_email
        self.customer = f"cus_{unique}"
        """What the payment provider calls it."""
        self.subscription_id = f"sub_{unique}"
        """What events call its subscription while the simulated provider knows of none."""
        self._parts = parts

    def __repr__(self) -> str:
        return f"<Tenant {self.id}>"

    @property
    def record(self) -> dict[str, Any]:
        """The tenant record as the API gives it, now."""
        exported = self._parts.api.as_operator("GET", f"/tenants/{self.id}/export")
        found: dict[str, Any] = exported["tenant"]
        return found

    @property
    def plan(self) -> str:
        """Its plan, now."""
        return str(self.record["plan"])

    @property
    def subscription_status(self) -> str:
        """Its subscription's status, now: ``none`` before it ever had one."""
        return str(self.record["subscriptionStatus"])

    def key(
        self, *scopes: str, name: str = "test", mode: str = "live", expires_in: timedelta | float | None = None
    ) -> Key:
        """A new key for these scopes; without any, an OWNER key. ``expires_in`` is a time or seconds, never if None."""
        wanted: dict[str, Any] = {"orgId": self.id, "name": name, "scopes": scopes, "mode": mode}
        if not scopes:
            wanted["accessLevel"] = "OWNER"
        if expires_in is not None:
            lifetime = expires_in if isinstance(expires_in, timedelta) else timedelta(seconds=expires_in)
            wanted["expiresAt"] = (system_clock() + lifetime).isoformat().replace("+00:00", "Z")
        made = self._parts.api.call("POST", "/api-keys", self.token(), wanted)
        return Key(self, made, made["secret"], self._parts)

    def member(self, user: str, role: str = "member") -> Member:
        """Make a user of the identity provider a member with this role, on record, who has accepted the invitation."""
        made = self._parts.api.call("POST", "/members", self.token(), {"userId": user, "role": role})
        member = Member(self, made, self._parts)
        self._parts.api.call("POST", f"/memberships/{member.id}/accept", member.token())
        return member

    def token(
        self,
        user: str | None = None,
        *,
        role: str | None = "owner",
        scope: str | None = None,
        expires_in: timedelta | float = LIFETIME,
        email: str | None = None,
        claims: Mapping[str, Any] = NO_CLAIMS,
    ) -> Credential:
        """A token that claims this tenant and a role: its owner's, unless it says otherwise."""
        return self._parts.issuer.token(
            user or self.owner, self.id, role=role, scope=scope, expires_in=expires_in, email=email, claims=claims
        )

    def mails(self, *, within: float = 10.0) -> Sequence[Mail]:
        """The mails that its owner was to get so far, oldest first, as `Tenantry.mails` finds them."""
        return self._parts.mails(self, within)

    def suspend(self) -> None:
        """Suspend it, as the operator: its people and keys are refused with 403."""
        self._set(suspended=True)

    def reinstate(self) -> None:
        """End a suspension."""
        self._set(suspended=False)

    def end(self) -> None:
        """End it, as the operator: its keys die at once."""
        self._parts.api.as_operator("DELETE", f"/tenants/{self.id}")

    def make(self, *, linked: bool) -> None:
        """Have the service make it; with ``linked`` its customer is known from the start."""
        self._set(ownerId=self.owner, **({"stripeCustomerId": self.customer} if linked else {}))

    def _set(self, **more: object) -> None:
        wanted = {"name": self.name, "ownerEmail": self.owner_email, **more}
        self._parts.api.as_operator("PUT", f"/tenants/{self.id}", wanted)

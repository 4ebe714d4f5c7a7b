"""Tenants, keys, members and tokens of a test."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import httpx2

from tenantry.common.clock import system_clock
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry_devkit.identity_provider import DEFAULT_SCOPE, DemoUser, SigningKey, mint_access_token
from tenantry_devkit.inbox import Mail
from tenantry_devkit.testing.errors import Credential, RefusedError, Variables, bearer
from tenantry_devkit.testing.mails import SessionDatabase

NO_CLAIMS: Final[Mapping[str, Any]] = MappingProxyType({})
TOKEN_LIFETIME: Final = timedelta(hours=1)


class TokenIssuer:
    """Issues access tokens, and adds their users to ``users``, the identity provider's."""

    def __init__(self, config: OidcConfig, signing_key: SigningKey, users: list[DemoUser]) -> None:
        self._config = config
        self._signing_key = signing_key
        self._users = users

    def token(
        self,
        user: str,
        org_id: str | None,
        *,
        role: str | None,
        scope: str | None,
        expires_in: timedelta | float,
        email: str | None,
        claims: Mapping[str, Any],
    ) -> Credential:
        """Return an access token; one that has expired was issued an hour before its end."""
        config = self._config
        self._users[:] = [other for other in self._users if other.sub != user]
        self._users.append(DemoUser(user, user, email, org_id, role))
        organization = {config.org_claim: org_id, config.role_claim: role}
        lifetime = _as_timedelta(expires_in)
        age = timedelta(0) if lifetime > timedelta(0) else TOKEN_LIFETIME - lifetime
        token = mint_access_token(
            self._signing_key,
            issuer=config.issuer,
            audience=config.audience,
            client_id=config.client_id or "",
            user=DemoUser(user, user, email),
            lifetime=lifetime + age,
            scope=DEFAULT_SCOPE if scope is None else scope,
            clock=lambda: system_clock() - age,
            more_claims={**{name: text for name, text in organization.items() if text is not None}, **claims},
        )
        return Credential(token)


def _as_timedelta(seconds: timedelta | float) -> timedelta:
    return seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)


class TenantContext(NamedTuple):
    """What tenants and keys need of the service."""

    http: httpx2.Client
    operator_token: Credential
    issuer: TokenIssuer
    database: SessionDatabase
    environment: Variables
    mails: Callable[["Tenant", float], Sequence[Mail]]

    def call(self, method: str, path: str, credential: Credential, json: object = None) -> Any:  # noqa: ANN401
        """Return the body of a successful response; raises `RefusedError`."""
        response = self.http.request(method, f"/api/v1{path}", headers=bearer(credential), json=json)
        if not response.is_success:
            raise RefusedError(response)
        return response.json() if response.content else None

    def as_operator(self, method: str, path: str, json: object = None) -> Any:  # noqa: ANN401
        return self.call(method, path, self.operator_token, json)


class Key:
    """An API key of a tenant; reports mask `secret`, `headers` and `environment`."""

    def __init__(self, tenant: "Tenant", record: Mapping[str, Any], secret: str, context: TenantContext) -> None:
        self.tenant = tenant
        self.id = str(record["id"])
        self.secret = Credential(secret)
        self._context = context

    def __repr__(self) -> str:
        return f"<Key {self.id} of {self.tenant.id}>"

    @property
    def headers(self) -> Variables:
        """The headers of a request with the key."""
        return bearer(self.secret)

    @property
    def environment(self) -> Variables:
        """The session's `environment`, and ``TENANTRY_API_KEY``."""
        return Variables({**self._context.environment, "TENANTRY_API_KEY": self.secret})

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = self._call("GET")
        return found

    def revoke(self) -> None:
        """Revoke it: the very next request with it is rejected."""
        self._call("DELETE")

    def rotate(self, *, overlap_seconds: int = 0) -> "Key":
        """Create its successor; the old key keeps working for ``overlap_seconds``."""
        made = self._call("POST", "/rotate", {"overlapSeconds": overlap_seconds})
        return Key(self.tenant, made, made["secret"], self._context)

    def expire(self) -> None:
        """Move its expiry into the past, in the database."""
        self._context.database.expire_key(self.tenant.id, self.id)

    def _call(self, method: str, more: str = "", json: object = None) -> Any:  # noqa: ANN401  # what the API answers
        return self._context.call(method, f"/api-keys/{self.id}{more}", self.tenant.token(), json)


class Member:
    """A user's membership in a tenant, on record."""

    def __init__(self, tenant: "Tenant", record: Mapping[str, Any], context: TenantContext) -> None:
        self.tenant = tenant
        self.id = str(record["id"])
        self.user = str(record["userId"])
        self._context = context

    def __repr__(self) -> str:
        return f"<Member {self.user} of {self.tenant.id}>"

    def token(self, *, scope: str | None = None, expires_in: timedelta | float = TOKEN_LIFETIME) -> Credential:
        """Return a token of the user without a role: the one on record counts."""
        return self.tenant.token(self.user, role=None, scope=scope, expires_in=expires_in)

    def change(self, role: str) -> None:
        """Give the member another role, from the next request on."""
        self._context.call("PATCH", f"/members/{self.id}", self.tenant.token(), {"role": role})

    def remove(self) -> None:
        """Remove the member: the user's very next request is rejected."""
        self._context.call("DELETE", f"/members/{self.id}", self.tenant.token())


class Tenant:
    """A tenant of a test. `record`, `plan` and `subscription_status` ask the service each time."""

    def __init__(self, tenant_id: str, name: str, owner_email: str, context: TenantContext) -> None:
        unique = secrets.token_hex(8)
        self.id = tenant_id
        self.name = name
        self.owner = f"owner-of-{tenant_id}"
        """The owner's id at the identity provider."""
        self.owner_email = owner_email
        self.customer = f"cus_{unique}"
        """Its customer at the payment provider."""
        self.subscription_id = f"sub_{unique}"
        """Its subscription in events, unless it has one at the simulated provider."""
        self._context = context

    def __repr__(self) -> str:
        return f"<Tenant {self.id}>"

    @property
    def record(self) -> dict[str, Any]:
        exported = self._context.as_operator("GET", f"/tenants/{self.id}/export")
        found: dict[str, Any] = exported["tenant"]
        return found

    @property
    def plan(self) -> str:
        return str(self.record["plan"])

    @property
    def subscription_status(self) -> str:
        return str(self.record["subscriptionStatus"])

    def key(
        self, *scopes: str, name: str = "test", mode: str = "live", expires_in: timedelta | float | None = None
    ) -> Key:
        """Create a key for these scopes, or an OWNER key without scopes. ``expires_in`` is a time or seconds."""
        wanted: dict[str, Any] = {"orgId": self.id, "name": name, "scopes": scopes, "mode": mode}
        if not scopes:
            wanted["accessLevel"] = "OWNER"
        if expires_in is not None:
            wanted["expiresAt"] = (system_clock() + _as_timedelta(expires_in)).isoformat().replace("+00:00", "Z")
        made = self._context.call("POST", "/api-keys", self.token(), wanted)
        return Key(self, made, made["secret"], self._context)

    def member(self, user: str, role: str = "member") -> Member:
        """Add a user with this role, who has accepted the invitation."""
        made = self._context.call("POST", "/members", self.token(), {"userId": user, "role": role})
        member = Member(self, made, self._context)
        self._context.call("POST", f"/memberships/{member.id}/accept", member.token())
        return member

    def token(
        self,
        user: str | None = None,
        *,
        role: str | None = "owner",
        scope: str | None = None,
        expires_in: timedelta | float = TOKEN_LIFETIME,
        email: str | None = None,
        claims: Mapping[str, Any] = NO_CLAIMS,
    ) -> Credential:
        """Return a token that claims this tenant and a role, by default the owner's."""
        return self._context.issuer.token(
            user or self.owner, self.id, role=role, scope=scope, expires_in=expires_in, email=email, claims=claims
        )

    def mails(self, *, within: float = 10.0) -> Sequence[Mail]:
        """Return the mails to its owner so far, oldest first, like `Tenantry.mails`."""
        return self._context.mails(self, within)

    def suspend(self) -> None:
        """Suspend it, as the operator: its members and keys are rejected with 403."""
        self._set(suspended=True)

    def reinstate(self) -> None:
        self._set(suspended=False)

    def end(self) -> None:
        """End it, as the operator: its keys are revoked at once."""
        self._context.as_operator("DELETE", f"/tenants/{self.id}")

    def create(self, *, linked: bool) -> None:
        """Create it at the service, by default linked to its customer."""
        self._set(ownerId=self.owner, **({"stripeCustomerId": self.customer} if linked else {}))

    def _set(self, **more: object) -> None:
        wanted = {"name": self.name, "ownerEmail": self.owner_email, **more}
        self._context.as_operator("PUT", f"/tenants/{self.id}", wanted)

"""A test's tenants, and their keys and members."""

import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack

from tenantry.common.clock import system_clock
from tenantry_devkit.inbox import Mail
from tenantry_devkit.testing.errors import Credential, Variables, bearer
from tenantry_devkit.testing.service import RunningService, TokenOptions, as_timedelta


class SuiteTenant:
    """A tenant of a test. `record`, `plan` and `subscription_status` ask the service each time."""

    def __init__(
        self, service: RunningService, tenant_id: str, name: str, owner_email: str
    ) -> None:
        unique = secrets.token_hex(8)
        self.service = service
        self.id = tenant_id
        self.name = name
        self.owner = f"owner-of-{tenant_id}"
        """The owner's id at the identity provider."""
        self.owner_email = owner_email
        self.customer = f"cus_{unique}"
        """Its customer at the payment provider."""
        self.subscription_id = f"sub_{unique}"
        """Its subscription in events, unless it has one at the simulated provider."""

    def __repr__(self) -> str:
        return f"<SuiteTenant {self.id}>"

    @property
    def record(self) -> dict[str, Any]:
        exported = self._as_operator("GET", "/export")
        found: dict[str, Any] = exported["tenant"]
        return found

    @property
    def plan(self) -> str:
        return str(self.record["plan"])

    @property
    def subscription_status(self) -> str:
        return str(self.record["subscriptionStatus"])

    def key(
        self,
        *scopes: str,
        name: str = "test",
        mode: str = "live",
        expires_in: timedelta | float | None = None,
    ) -> "Key":
        """Create a key for these scopes, or an OWNER key without scopes. ``expires_in`` is a time
        or seconds.
        """
        wanted: dict[str, Any] = {
            "orgId": self.id,
            "name": name,
            "scopes": scopes,
            "mode": mode,
        }
        if not scopes:
            wanted["accessLevel"] = "OWNER"
        if expires_in is not None:
            wanted["expiresAt"] = (
                (system_clock() + as_timedelta(expires_in)).isoformat().replace("+00:00", "Z")
            )
        return Key(self, self.call("POST", "/api-keys", wanted))

    def member(self, user: str, role: str = "member") -> "SuiteMember":
        """Add a user with this role, who has accepted the invitation."""
        member = SuiteMember(
            self,
            self.call(
                "POST",
                "/members",
                {"userId": user, "role": role},
            ),
        )
        self.service.call(
            "POST",
            f"/memberships/{member.id}/accept",
            member.token(),
        )
        return member

    def token(
        self,
        user: str | None = None,
        *,
        role: str | None = "owner",
        **options: Unpack[TokenOptions],
    ) -> Credential:
        """Return a token that claims this tenant and a role, by default the owner's, like
        `SuiteTenantry.token`.
        """
        return self.service.token(
            user or self.owner,
            self.id,
            role=role,
            **options,
        )

    def mails(self, *, within: float = 10.0) -> Sequence[Mail]:
        """Return the mails to its owner so far, oldest first, like `SuiteTenantry.mails`."""
        return self.service.mails.of([self.id], within=within)

    def suspend(self) -> None:
        """Suspend it, as the operator: its members and keys are rejected with 403."""
        self._set(suspended=True)

    def reinstate(self) -> None:
        self._set(suspended=False)

    def end(self) -> None:
        """End it, as the operator: its keys are revoked at once."""
        self._as_operator("DELETE")

    def create(self, *, linked: bool) -> None:
        """Create it at the service, by default linked to its customer."""
        self._set(ownerId=self.owner, **({"stripeCustomerId": self.customer} if linked else {}))

    def call(self, method: str, path: str, json: object = None) -> Any:  # noqa: ANN401
        """Call the API as the owner."""
        return self.service.call(
            method,
            path,
            self.token(),
            json,
        )

    def _set(self, **more: object) -> None:
        self._as_operator("PUT", json={"name": self.name, "ownerEmail": self.owner_email, **more})

    def _as_operator(self, method: str, more: str = "", json: object = None) -> Any:  # noqa: ANN401
        return self.service.call(
            method,
            f"/tenants/{self.id}{more}",
            self.service.operator_token,
            json,
        )


class Key:
    """An API key of a tenant, from a new key's record; reports mask `secret`, `headers` and
    `environment`.
    """

    def __init__(self, tenant: SuiteTenant, record: Mapping[str, Any]) -> None:
        self.tenant = tenant
        self.id = str(record["id"])
        self.secret = Credential(record["secret"])

    def __repr__(self) -> str:
        return f"<Key {self.id} of {self.tenant.id}>"

    @property
    def headers(self) -> Variables:
        """The headers of a request with the key."""
        return bearer(self.secret)

    @property
    def environment(self) -> Variables:
        """The session's `environment`, and ``TENANTRY_API_KEY``."""
        return Variables({**self.tenant.service.environment, "TENANTRY_API_KEY": self.secret})

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = self.tenant.call("GET", f"/api-keys/{self.id}")
        return found

    def revoke(self) -> None:
        """Revoke it: the very next request with it is rejected."""
        self.tenant.call("DELETE", f"/api-keys/{self.id}")

    def rotate(self, *, overlap_seconds: int = 0) -> "Key":
        """Create its successor; the old key keeps working for ``overlap_seconds``."""
        wanted = {"overlapSeconds": overlap_seconds}
        return Key(
            self.tenant,
            self.tenant.call(
                "POST",
                f"/api-keys/{self.id}/rotate",
                wanted,
            ),
        )

    def expire(self) -> None:
        """Move its expiry into the past, in the database."""
        self.tenant.service.database.expire_key(self.tenant.id, self.id)


class SuiteMember:
    """A user's membership in a tenant, on record."""

    def __init__(self, tenant: SuiteTenant, record: Mapping[str, Any]) -> None:
        self.tenant = tenant
        self.id = str(record["id"])
        self.user = str(record["userId"])

    def __repr__(self) -> str:
        return f"<SuiteMember {self.user} of {self.tenant.id}>"

    def token(self, **options: Unpack[TokenOptions]) -> Credential:
        """Return a token of the user without a role: the one on record counts."""
        return self.tenant.token(
            self.user,
            role=None,
            **options,
        )

    def change(self, role: str) -> None:
        """Give the member another role, from the next request on."""
        self.tenant.call(
            "PATCH",
            f"/members/{self.id}",
            {"role": role},
        )

    def remove(self) -> None:
        """Remove the member: the user's very next request is rejected."""
        self.tenant.call("DELETE", f"/members/{self.id}")

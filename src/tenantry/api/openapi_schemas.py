"""What the OpenAPI document says of each schema, beyond its types: the meaning of fields, and an example."""

from typing import Any, Final

_PROJECT: Final[dict[str, Any]] = {
    "id": "proj_01975c3a4f10b7e2d4a6c8f01e3b5d7f",
    "orgId": "acme",
    "name": "Storefront",
    "description": "The public shop",
    "mode": "live",
    "createdAt": "2026-11-02T09:30:00Z",
    "updatedAt": "2026-11-02T09:30:00Z",
}
_API_KEY: Final[dict[str, Any]] = {
    "id": "key_01975c3a51c2a1b3c5d7e9f10213a5b7",
    "orgId": "acme",
    "name": "CI deploys",
    "scopes": ["projects:read", "projects:write"],
    "accessLevel": "SCOPED",
    "mode": "live",
    "expiresAt": "2099-11-01T00:00:00Z",
    "status": "active",
    "start": "svc_live_4fGh",
    "last4": "x9Qz",
    "createdAt": "2026-11-02T09:31:00Z",
    "createdBy": "user_ada",
    "lastUsedAt": "2026-11-02T11:05:12Z",
    "lastUsedAddress": "203.0.113.7",
    "revokedAt": None,
    "rotatedFrom": None,
    "supersededBy": None,
    "rotatedFromLastUsedAt": None,
    "leakReportedAt": None,
}
_TENANT: Final[dict[str, Any]] = {
    "id": "acme",
    "name": "Acme",
    "plan": "pro",
    "subscriptionStatus": "active",
    "currentPeriodEnd": "2026-12-01T00:00:00Z",
    "cancelAtPeriodEnd": False,
    "stripeCustomerId": "cus_Rk2pXw7Lm3",
    "ownerId": "user_ada",
    "createdAt": "2026-10-01T08:00:00Z",
    "updatedAt": "2026-11-01T00:00:04Z",
}
_MEMBER: Final[dict[str, Any]] = {
    "id": "mbr_01975c3a5b3ef0a1b2c3d4e5f6071829",
    "orgId": "acme",
    "userId": "user_ada",
    "role": "owner",
    "status": "active",
    "createdAt": "2026-10-01T08:00:00Z",
    "updatedAt": "2026-10-01T08:00:00Z",
    "removedAt": None,
}
_MEMBERSHIP: Final[dict[str, Any]] = {
    "id": _MEMBER["id"],
    "orgId": "acme",
    "orgName": "Acme",
    "role": "admin",
    "status": "invited",
}
_FREE: Final[dict[str, Any]] = {
    "plan": "free",
    "subscriptionStatus": "none",
    "currentPeriodEnd": None,
    "cancelAtPeriodEnd": False,
}
_PRO: Final[dict[str, Any]] = {
    "plan": "pro",
    "subscriptionStatus": "active",
    "currentPeriodEnd": "2026-12-01T00:00:00Z",
    "cancelAtPeriodEnd": False,
}
_EVENT: Final[dict[str, Any]] = {
    "id": "evt_1SQk7xLm3Rk2pXw7",
    "type": "customer.subscription.updated",
    "created": "2026-11-01T00:00:02Z",
    "receivedAt": "2026-11-01T00:00:04Z",
    "livemode": True,
    "outcome": "applied",
    "reason": "The subscription is active: price price_pro means plan pro.",
    "before": _FREE,
    "after": _PRO,
    "anomalies": [],
}

_AUDIT_EVENT: Final[dict[str, Any]] = {
    "id": "aud_01975c3a60d1b2c3d4e5f60718293a4b",
    "orgId": "acme",
    "at": "2026-11-02T09:45:10Z",
    "action": "api_key.updated",
    "actorKind": "user",
    "actorId": "user_ada",
    "address": "203.0.113.7",
    "requestId": "5e0c4ad1c1f24b7f9a0b6f9f6d0c7a51",
    "targetId": _API_KEY["id"],
    "before": {"name": "CI"},
    "after": {"name": "CI deploys"},
}

EXAMPLES: Final[dict[str, Any]] = {
    "AuditEvent": _AUDIT_EVENT,
    "Project": _PROJECT,
    "NewProject": {"name": "Storefront", "description": "The public shop"},
    "ProjectChange": {"name": "Storefront EU"},
    "ApiKey": _API_KEY,
    "ApiKeyWithSecret": {**_API_KEY, "secret": "svc_live_4fGhT0...x9Qz"},
    "NewApiKey": {
        "orgId": "acme",
        "name": "CI deploys",
        "scopes": ["projects:read", "projects:write"],
        "expiresAt": "2099-11-01T00:00:00Z",
    },
    "ApiKeyChange": {"name": "CI deploys (main)", "scopes": ["projects:read"]},
    "Rotation": {"overlapSeconds": 3600},
    "LeakReport": {"secret": "svc_live_4fGhT0...x9Qz"},
    "EndedKey": {"id": _API_KEY["id"], "status": "revoked", "revokedAt": "2026-11-05T16:20:00Z"},
    "Tenant": _TENANT,
    "NewTenant": {"name": "Acme", "ownerEmail": "ada@acme.example"},
    "TenantChange": {"name": "Acme Ltd", "ownerEmail": "billing@acme.example"},
    "OperatorTenant": {
        "name": "Acme",
        "ownerEmail": "ada@acme.example",
        "ownerId": "user_ada",
        "stripeCustomerId": "cus_Rk2pXw7Lm3",
    },
    "TenantExport": {
        "tenant": _TENANT,
        "ownerEmail": "ada@acme.example",
        "ownerEmailVerified": True,
        "suspended": False,
        "customers": ["cus_Rk2pXw7Lm3"],
        "members": [
            {
                "id": _MEMBER["id"],
                "issuer": "https://login.example.com",
                "subject": "user_ada",
                "role": "owner",
                "status": "active",
                "createdAt": "2026-10-01T08:00:00Z",
                "updatedAt": "2026-10-01T08:00:00Z",
                "removedAt": None,
            }
        ],
        "apiKeys": [_API_KEY],
        "projects": [_PROJECT],
        "auditEvents": [_AUDIT_EVENT],
        "billingEvents": [_EVENT],
    },
    "Member": _MEMBER,
    "Membership": _MEMBERSHIP,
    "NewMember": {"userId": "user_grace", "role": "admin"},
    "MemberChange": {"role": "member"},
    "OwnerTransfer": {"userId": "user_grace", "ownerEmail": "grace@acme.example"},
    "PlanView": {
        "id": "pro",
        "name": "Pro",
        "stripePriceId": "price_pro",
        "limits": {"projects": 50, "apiKeys": 100, "members": 1000, "requestsPerMinute": 6000},
    },
    "BillingFields": _PRO,
    "BillingEventView": _EVENT,
    "NewCheckoutSession": {
        "plan": "pro",
        "successUrl": "https://app.acme.example/welcome",
        "cancelUrl": "https://app.acme.example/plans",
    },
    "NewPortalSession": {"returnUrl": "https://app.acme.example/settings"},
    "SessionAddress": {"url": "https://checkout.stripe.com/c/pay/cs_live_a1B2c3"},
    "Whoami": {
        "kind": "api_key",
        "id": _API_KEY["id"],
        "orgId": "acme",
        "mode": "live",
        "scopes": ["projects:read", "projects:write"],
        "accessLevel": "SCOPED",
        "plan": "pro",
        "subscriptionStatus": "active",
        "expiresAt": "2099-11-01T00:00:00Z",
    },
    "Health": {"status": "ok", "waitingFor": []},
    "Problem": {
        "type": "urn:tenantry:problem:validation_failed",
        "title": "Unprocessable Entity",
        "status": 422,
        "detail": "The request is not valid.",
        "code": "validation_failed",
        "requestId": "5e0c4ad1c1f24b7f9a0b6f9f6d0c7a51",
        "errors": [{"location": "name", "message": "Expected `str` of length >= 1"}],
    },
}

_ORG_ID: Final = "The organization that it belongs to."
_MODE: Final = "The two modes never see each other's objects."
_CREATED_AT: Final = "When it was made."
_UPDATED_AT: Final = "When it was last changed."
_PLAN: Final = "The plan's id; `free` is the fallback and downgrade plan."
_STATUS: Final = "The provider's subscription status, such as `active`, `past_due` or `canceled`; `none` before any."
_PERIOD_END: Final = "End of the current billing period; null when there is none."
_CANCEL: Final = "Whether the subscription ends with the period."
_NAME: Final = "What people call it."
_LEVEL: Final = "`OWNER` may do everything; `SCOPED` what its scopes say."
_CUSTOMER: Final = "The payment provider's id of the customer; of several, the one linked last."
_SCOPES: Final = "What the holder may do: `<resource>:<action>`, where either part may be `*`."

_API_KEY_FIELDS: Final = {
    "id": "The key's id, for changing, rotating and revoking it.",
    "orgId": _ORG_ID,
    "name": _NAME,
    "scopes": _SCOPES,
    "accessLevel": _LEVEL,
    "mode": _MODE,
    "expiresAt": "When it ends; null for never.",
    "status": "Only an active key lets anybody in.",
    "start": "The first 13 characters of the secret, to tell keys apart.",
    "last4": "The last 4 characters of the secret.",
    "createdAt": _CREATED_AT,
    "createdBy": "The id of the user or key that made it.",
    "lastUsedAt": "When it was last used; up to a minute behind.",
    "lastUsedAddress": "The address of the client that last used it.",
    "revokedAt": "When it was revoked; null if it was not.",
    "rotatedFrom": "The key that this one took the place of.",
    "supersededBy": "The key that took this one's place.",
    "rotatedFromLastUsedAt": "When the key that this one took the place of was last used: once clients have moved "
    "over, it stands still.",
    "leakReportedAt": "When it was reported as leaked, which revoked it; null if it was not.",
}
_BILLING_FIELDS: Final = {
    "plan": _PLAN,
    "subscriptionStatus": _STATUS,
    "currentPeriodEnd": _PERIOD_END,
    "cancelAtPeriodEnd": _CANCEL,
}

FIELDS: Final[dict[str, dict[str, str]]] = {
    "Project": {
        "id": "The project's id.",
        "orgId": _ORG_ID,
        "name": _NAME,
        "description": "What it is for, in any words.",
        "mode": _MODE,
        "createdAt": _CREATED_AT,
        "updatedAt": _UPDATED_AT,
    },
    "NewProject": {"description": "What it is for, in any words."},
    "ProjectChange": {"description": "What it is for; null clears it."},
    "ApiKey": _API_KEY_FIELDS,
    "ApiKeyWithSecret": {**_API_KEY_FIELDS, "secret": "The key itself. It is in this answer and never again."},
    "NewApiKey": {
        "orgId": "The caller's own organization.",
        "scopes": "What the key may do: `<resource>:<action>`, where either part may be `*`. `OWNER` stands alone.",
        "expiresAt": "When the key ends, in the future; null or left out for never.",
        "accessLevel": "`OWNER` for a key that may do everything, with no `scopes` then.",
        "mode": "The caller's own where it is left out. A test-mode key makes test-mode keys only.",
    },
    "ApiKeyChange": {
        "scopes": "All scopes that the key is to have.",
        "expiresAt": "When the key ends, in the future; null for never.",
    },
    "Rotation": {"overlapSeconds": "For how long the old key goes on beside the new one; a week at most."},
    "LeakReport": {"secret": "The whole key. White space around it does not matter."},
    "EndedKey": {"id": "The key's id.", "status": "Always `revoked`.", "revokedAt": "Since when."},
    "Tenant": {
        "id": "The organization's id, as in the subscription's `metadata.orgId`.",
        "name": _NAME,
        **_BILLING_FIELDS,
        "stripeCustomerId": _CUSTOMER,
        "ownerId": "The user who gets the billing mail.",
        "createdAt": _CREATED_AT,
        "updatedAt": _UPDATED_AT,
    },
    "OperatorTenant": {
        "ownerId": "The owner's id at the identity provider.",
        "stripeCustomerId": "The payment provider's id of the customer to link.",
        "suspended": "Whether the tenant's credentials are refused.",
    },
    "TenantExport": {
        "tenant": "The tenant's record.",
        "ownerEmail": "Where billing mail goes.",
        "ownerEmailVerified": "Whether security notices go to the owner address, which is verified then.",
        "suspended": "Whether the tenant's credentials are refused.",
        "customers": "The payment provider's customers that are linked to it.",
        "members": "Users and their roles, removed ones included.",
        "apiKeys": "All keys, without secrets.",
        "projects": "All projects of both modes.",
        "auditEvents": "The whole audit trail.",
        "billingEvents": "The whole ledger.",
    },
    "AuditEvent": {
        "id": "The entry's id.",
        "orgId": _ORG_ID,
        "at": "When the change was made.",
        "action": "What was done, and to what kind of thing.",
        "actorKind": "Who did it: an API key, a user, the operator, or anybody who reports a leaked key.",
        "actorId": "The id of that key or user.",
        "address": "The client's address.",
        "requestId": "The request's id, as in `X-Request-Id` and in our log.",
        "targetId": "The id of the key, member or tenant that was changed.",
        "before": "The fields that differ, as they were; null where there was nothing before.",
        "after": "The fields that differ, as they are; null where nothing is left.",
    },
    "Member": {
        "id": "The member's id, for changing the role and removing it.",
        "orgId": _ORG_ID,
        "userId": "The user's id at the identity provider: `sub` of their tokens.",
        "role": "What the user may do: an owner everything, an admin all but what needs an OWNER, a member the "
        "projects and reading the tenant and its billing.",
        "status": "`invited` until the user accepts, `active`, or `removed`. Only an active member is let in, and whom "
        "the identity provider's claim names.",
        "createdAt": "When the user was first added or invited.",
        "updatedAt": _UPDATED_AT,
        "removedAt": "When the user was removed, and is refused since; null for a member.",
    },
    "Membership": {
        "id": "The membership's id, which is the member's in the tenant.",
        "orgId": _ORG_ID,
        "orgName": "What the tenant calls itself: text that its own people choose.",
        "role": "What the user may do there.",
        "status": "`invited` until the user accepts, `active`, or `removed`.",
    },
    "NewMember": {"role": "What the user may do."},
    "MemberChange": {"role": "What the user may do from now on."},
    "OwnerTransfer": {"userId": "The new owner, who must be a member: the user's id at the identity provider."},
    "PlanView": {
        "id": "The plan's id, as a tenant's `plan` has it.",
        "name": _NAME,
        "stripePriceId": "The payment provider's price that means this plan: the first of them.",
        "limits": "What the plan allows; an absent limit is no limit.",
    },
    "Limits": {
        "projects": "Most projects in each mode.",
        "apiKeys": "Most active API keys.",
        "members": "Most members and invitations.",
        "requestsPerMinute": "Most requests of the tenant in any 60 seconds.",
        "requestsPerMinutePerKey": "Most requests of each API key or user in any 60 seconds.",
    },
    "BillingFields": _BILLING_FIELDS,
    "BillingEventView": {
        "id": "The provider's event id; one of our own for what the provider's API answered.",
        "type": "The provider's event type, or tenantry.subscription.snapshot for what its API answered.",
        "created": "When the provider made the event: this decides the order.",
        "receivedAt": "When it arrived here.",
        "livemode": "Whether the provider made it in its live mode; null if it does not say.",
        "outcome": "What became of it on arrival.",
        "reason": "Why, in words.",
        "before": "The tenant's billing fields before it; null where it has no place in the order.",
        "after": "The tenant's billing fields after it.",
        "anomalies": "What is unexpected about it, such as unknown_price; empty as a rule.",
    },
    "SessionAddress": {"url": "Send the browser here. It ends by itself, and who knows it acts for the tenant there."},
    "Whoami": {
        "kind": "What the credential is.",
        "id": "The key's id, or the user's at the identity provider.",
        "orgId": "The organization that the caller acts for.",
        "mode": "The caller's mode; a user's is always live.",
        "scopes": _SCOPES,
        "accessLevel": _LEVEL,
        "plan": "The plan of the organization.",
        "subscriptionStatus": "The subscription status of the organization.",
        "expiresAt": "When the credential ends; null for never.",
    },
    "Health": {"status": "`ok` or `not ready`.", "waitingFor": "What is not ready yet."},
    "Problem": {
        "type": "A URI that names the code.",
        "title": "The status in words.",
        "status": "The HTTP status.",
        "detail": "What is wrong, for people; the wording may change.",
        "code": "What is wrong, for programs: this does not change.",
        "requestId": "The request's id, as in `X-Request-Id` and in our log.",
        "errors": "Each fault of a request that is not valid: its `location`, and a `message`.",
        "id": "The object that an idempotent request made the first time.",
    },
    "Fault": {"location": "The field's path, or the parameter's name.", "message": "What is wrong with it."},
}
PAGE_FIELDS: Final = {"data": "The objects, at most `limit`.", "nextCursor": "For the next page; null on the last."}

PARAMETERS: Final = {
    "project_id": _PROJECT["id"],
    "key_id": _API_KEY["id"],
    "tenant_id": _TENANT["id"],
    "member_id": _MEMBER["id"],
    "membership_id": _MEMBER["id"],
    "event_id": _EVENT["id"],
    "scope": "projects:read",
    "mode": "any",
}
"""Examples of path parameters."""

IDENTITY: Final = {
    "X-Tenant-Id": "acme",
    "X-Principal-Id": _API_KEY["id"],
    "X-Principal-Kind": "api_key",
    "X-Mode": "live",
    "X-Plan": "pro",
    "X-Subscription-Status": "active",
}
"""The headers of the answer to a gateway, with examples."""

"""Whether a tenant's plan allows one more of what it limits."""

from datetime import datetime
from typing import Final, NamedTuple

from tenantry.domain.access import limit_text, limits_of
from tenantry.domain.errors import DomainError, KeyLimitReachedError, PlanLimitReachedError
from tenantry.domain.plans import Catalog
from tenantry.domain.tenants import TenantRecord, access_of


class Limited(NamedTuple):
    """What a plan limits: the field of `Limits`, the words for it, and the error at the limit."""

    field: str
    words: str
    error: type[DomainError]


PROJECTS: Final = Limited("projects", "projects", PlanLimitReachedError)
MEMBERS: Final = Limited("members", "members; invitations count as members", PlanLimitReachedError)
ACTIVE_KEYS: Final = Limited("api_keys", "active API keys", KeyLimitReachedError)
REPLACED_KEYS: Final = Limited("api_keys", "rotated API keys that still work", KeyLimitReachedError)


class LimitInForce(NamedTuple):
    """The most that a tenant may have at a moment, and the error at that limit."""

    most: int
    error: DomainError

    def check(self, present: int) -> None:
        """Raise the error unless the tenant, which has ``present`` of them, may have one more."""
        if present >= self.most:
            raise self.error


def limit_in_force(
    limited: Limited, tenant: TenantRecord, catalog: Catalog, now: datetime
) -> LimitInForce | None:
    """Return the limit that counts for a tenant at ``now``; None without one, and then nothing
    needs to be counted.
    """
    access = access_of(tenant, catalog, now)
    most: int | None = getattr(limits_of(access, catalog), limited.field)
    if most is None:
        return None
    text = limit_text(access, tenant.plan, catalog, f"{most} {limited.words}")
    return LimitInForce(most, limited.error(text, needed=limited.field))

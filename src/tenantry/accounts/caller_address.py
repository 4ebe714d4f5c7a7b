"""Whether an owner's address is verified, because the identity provider verified it as the
caller's.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tenantry.domain.owner_mails import same_address
from tenantry.integrations.oidc.claims import Claims

FindEmail = Callable[[], Awaitable[str | None]]
"""Fetches the user's verified address from the identity provider."""


async def _no_email() -> str | None:
    return None


@dataclass(frozen=True)
class CallerAddress:
    """The address that the identity provider verified as the caller's; a key has no ``claims`` and
    no address.

    It is that of the verified claims, else the one that ``find_email`` fetches. Use it before the
    transaction begins.
    """

    claims: Claims | None
    find_email: FindEmail = _no_email

    async def find(self) -> str | None:
        """Return the address, if there is one."""
        if self.claims is None:
            return None
        return self.claims.email or await self.find_email()

    async def verifies(self, email: str | None) -> bool:
        """Whether ``email`` is that address; None is not."""
        if email is None:
            return False
        found = await self.find()
        return found is not None and same_address(found, email)


UNVERIFIED: Final = CallerAddress(None)
"""The caller has no verified address."""

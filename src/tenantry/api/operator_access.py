"""Requests with one of the operator's tokens: which they are, and for which tenant they act
(CONTRACT 11.1).
"""

import hmac
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from tenantry.auth.authentication import Authenticator
from tenantry.auth.credentials import CredentialKind, HeaderReader, digest_of
from tenantry.common.secret import Secret
from tenantry.domain.errors import (
    AuthUnavailableError,
    DatabaseUnavailableError,
    DomainError,
    InvalidRequestError,
    OrganizationRequiredError,
)
from tenantry.domain.permissions import Mode, RequestPrincipal

VISIBLE: Final = re.compile(rb"[\x21-\x7e]{1,255}")
"""A text that a client chooses, to be stored."""

_ACT_AS: Final = b"x-act-as-organization"
_ACT_IN_MODE: Final = b"x-act-in-mode"
_ON_BEHALF_OF: Final = b"x-on-behalf-of"
_OF_USERS: Final = b"x-organization-id"
_ONE_NEEDED: Final = (
    "With the operator's token, this route needs one header X-Act-As-Organization: <tenant's id>."
)
_MODES: Final = {None: Mode.LIVE, b"test": Mode.TEST}


class OperatorRequest(msgspec.Struct, frozen=True):
    """What a request of the operator says beside the token."""

    tenant_id: str | None
    """The tenant for which the operator acts, as it was sent; None without one."""
    mode: Mode
    on_behalf_of: str | None
    """For whom the request is made, in the operator's words."""


class OperatorAccess(msgspec.Struct, frozen=True):
    """Recognizes the operator, who acts for any tenant with the rights of an owner."""

    tokens: Sequence[Secret]
    authenticator: Authenticator

    def read(self, header: HeaderReader) -> OperatorRequest | None:
        """Read a request that has one of the tokens as its bearer credential; None for others.

        Raises `OrganizationRequiredError` for one that names several tenants or none, or names one
        in the header of users, too, and `InvalidRequestError` for a mode or a name that is none.
        """
        if not self._is_sender(header):
            return None
        named = header(_ACT_AS)
        if named is not None and header(_OF_USERS) is not None:
            raise OrganizationRequiredError(
                "The operator names a tenant with X-Act-As-Organization alone: X-Organization-Id is for users."
            )
        if named is not None and (not named or b"," in named):  # several headers are joined
            raise OrganizationRequiredError(_ONE_NEEDED)
        mode = _MODES.get(header(_ACT_IN_MODE))
        if mode is None:
            raise InvalidRequestError(
                "X-Act-In-Mode can only be test; without it, the mode is live."
            )
        tenant_id = None if named is None else named.decode("latin-1")
        return OperatorRequest(tenant_id, mode, self._represented(header(_ON_BEHALF_OF)))

    async def act(self, request: OperatorRequest, *, is_use: bool = False) -> RequestPrincipal:
        """Return the operator's principal in the tenant that a request names.

        Raises `OrganizationRequiredError`, `NotFoundError` for a tenant that is unknown or has
        ended, `OrgSuspendedError` for the use of a suspended one, and `AuthUnavailableError`.
        """
        if request.tenant_id is None:
            raise OrganizationRequiredError(_ONE_NEEDED)
        try:
            return await self.authenticator.as_operator(
                request.tenant_id, request.mode, is_use=is_use
            )
        except DatabaseUnavailableError as error:
            raise AuthUnavailableError(error.detail) from error

    def without_secret(self, text: str) -> str:
        """As `CredentialFinder.without_secret`; the tokens are secrets, too."""
        is_token = any(token.reveal() in text for token in self.tokens)
        return digest_of(text) if is_token else self.authenticator.credentials.without_secret(text)

    def _is_sender(self, header: HeaderReader) -> bool:
        try:
            sent = self.authenticator.credentials.find_in(header)
        except DomainError:  # none, or a malformed one
            return False
        tokens = [token.reveal().encode() for token in self.tokens]
        matches = [hmac.compare_digest(sent.value, token) for token in tokens]
        return sent.kind is CredentialKind.OTHER and any(matches)

    def _represented(self, sent: bytes | None) -> str | None:
        if sent is None:
            return None
        if not VISIBLE.fullmatch(sent):
            raise InvalidRequestError("X-On-Behalf-Of must be 1 to 255 visible ASCII characters.")
        return self.without_secret(sent.decode())

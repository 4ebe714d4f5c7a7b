"""The links of invitations: an id and its HMAC. Nothing of a link is stored."""

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from tenantry.common.secret import Secret
from tenantry.domain.members import User

INVITATION_PATH: Final = "/invitation"
"""The page that a link opens."""
CONFIRMATION_VALID: Final = timedelta(hours=24)
LONGEST_TOKEN: Final = 100
LONGEST_PROOF: Final = 100
_TOKEN: Final = re.compile(r"(inv_[0-9a-f]{32})\.([A-Za-z0-9_-]{43})", re.ASCII)
_PROOF: Final = re.compile(r"([0-9]{1,12})\.([A-Za-z0-9_-]{43})", re.ASCII)


class InvitationLinks:
    """Makes and reads the links of invitations at ``base_url``.

    The first of the deployment's ``secrets`` signs, and every one of them is accepted, so that
    links outlive a rotation.
    """

    __slots__ = ("_base_url", "_keys")

    def __init__(self, secrets: Sequence[Secret], base_url: str) -> None:
        self._keys = [_derived(secret) for secret in secrets]
        self._base_url = base_url

    def link(self, invitation_id: str) -> str:
        """Return the address that an invitation mail links."""
        return f"{self._base_url}{INVITATION_PATH}?token={self.token(invitation_id)}"

    def token(self, invitation_id: str) -> str:
        """Return the part of a link that names the invitation."""
        return f"{invitation_id}.{_mac(self._keys[0], ['invitation', invitation_id])}"

    def read(self, token: str) -> str | None:
        """Return the id of the invitation that a token names; None for a forged token."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        invitation_id, mac = match.groups()
        return invitation_id if self._is_ours(mac, ["invitation", invitation_id]) else None

    def confirmation(self, invitation_id: str, user: User, queued_at: datetime) -> str:
        """Return the address that a confirmation mail links. It counts for this user alone."""
        until = str(int((queued_at + CONFIRMATION_VALID).timestamp()))
        mac = _mac(self._keys[0], ["confirmation", invitation_id, *user, until])
        return f"{self.link(invitation_id)}&proof={until}.{mac}"

    def confirms(self, invitation_id: str, user: User, proof: str, now: datetime) -> bool:
        """Whether a proof is of a confirmation mail for this invitation and user, and is still
        valid.
        """
        match = _PROOF.fullmatch(proof)
        if match is None:
            return False
        until, mac = match.groups()
        is_ours = self._is_ours(mac, ["confirmation", invitation_id, *user, until])
        return is_ours and now <= datetime.fromtimestamp(int(until), UTC)

    def _is_ours(self, mac: str, parts: Sequence[str]) -> bool:
        return any(hmac.compare_digest(mac, _mac(key, parts)) for key in self._keys)


def _derived(secret: Secret) -> bytes:
    return hmac.digest(secret.reveal().encode(), b"tenantry invitation links", hashlib.sha256)


def _mac(key: bytes, parts: Sequence[str]) -> str:
    content = msgspec.json.encode(parts)
    mac = hmac.digest(key, content, hashlib.sha256)
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()

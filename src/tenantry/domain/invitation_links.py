"""The links of invitations. Nothing of a link is stored.

The token of a link is the invitation's id and an HMAC: it names the invitation. The proof, another
HMAC, is only in the links of mails: a user who has it received mail at the invited address, or got
it from its reader.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from tenantry.common.secret import Secret

INVITATION_PATH: Final = "/invitation"
"""The page that a link opens."""
LONGEST_TOKEN: Final = 100
LONGEST_PROOF: Final = 100
_TOKEN: Final = re.compile(r"(inv_[0-9a-f]{32})\.([A-Za-z0-9_-]{43})", re.ASCII)
_OF_LINK: Final = "invitation"
_OF_MAIL: Final = "mailed invitation"


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
        """Return the link that an admin may pass on: it proves nothing."""
        return f"{self._base_url}{INVITATION_PATH}?token={self.token(invitation_id)}"

    def mailed_link(self, invitation_id: str) -> str:
        """Return the link for mails to the invited address, and for nothing else: it has the
        proof.
        """
        return f"{self.link(invitation_id)}&proof={self._mac(_OF_MAIL, invitation_id)}"

    def token(self, invitation_id: str) -> str:
        """Return the part of a link that names the invitation."""
        return f"{invitation_id}.{self._mac(_OF_LINK, invitation_id)}"

    def read(self, token: str) -> str | None:
        """Return the id of the invitation that a token names; None for a forged token."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        invitation_id, mac = match.groups()
        return invitation_id if self._is_ours(mac, _OF_LINK, invitation_id) else None

    def is_mailed(self, invitation_id: str, proof: str) -> bool:
        """Whether a proof is of a mail about this invitation."""
        return proof.isascii() and self._is_ours(proof, _OF_MAIL, invitation_id)

    def _mac(self, purpose: str, invitation_id: str) -> str:
        return _mac(self._keys[0], [purpose, invitation_id])

    def _is_ours(self, mac: str, purpose: str, invitation_id: str) -> bool:
        content = [purpose, invitation_id]
        return any(hmac.compare_digest(mac, _mac(key, content)) for key in self._keys)


def _derived(secret: Secret) -> bytes:
    return hmac.digest(secret.reveal().encode(), b"tenantry invitation links", hashlib.sha256)


def _mac(key: bytes, parts: Sequence[str]) -> str:
    content = msgspec.json.encode(parts)
    mac = hmac.digest(key, content, hashlib.sha256)
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()

"""Tokens whose signature has been found good before."""

import hashlib
from collections import OrderedDict
from typing import Final

import msgspec
from joserfc.jwk import Key

from tenantry.integrations.oidc.checks import Times
from tenantry.integrations.oidc.claims import Claims

MAX_ENTRIES: Final = 10_000
MAX_BYTES: Final = 32 * 1024 * 1024
# The entry itself, its place in the table, and the objects in it that have one size.
_FRAME_BYTES: Final = 900
# A character of a token is at most three quarters of a byte of JSON, and each of those at most four in memory.
_BYTES_A_CHARACTER: Final = 3
_BYTES_A_SCOPE: Final = 60


class Proof(msgspec.Struct, frozen=True):
    """What is kept of a token: by which key it was proved, and what it says. Not the token."""

    kid: str | None
    alg: str
    key: Key
    times: Times
    claims: Claims


class ProvenTokens:
    """The tokens proved most recently, found by the digest of the whole token; bounded in number and in bytes.

    A proof says that this key made the signature and that the checks that depend on the token alone passed. It does
    not say that the key is still published, nor that the token is still, or already, valid: ask that every time.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._proofs: OrderedDict[bytes, tuple[Proof, int]] = OrderedDict()
        self.bytes_held = 0
        """How much memory the proofs take, at most."""
        self.hits = 0

    def __len__(self) -> int:
        return len(self._proofs)

    def find(self, digest: bytes) -> Proof | None:
        """The proof of the token with this digest."""
        found = self._proofs.get(digest)
        if found is None:
            return None
        self._proofs.move_to_end(digest)
        self.hits += 1
        return found[0]

    def add(self, digest: bytes, proof: Proof, length: int) -> None:
        """Keep the proof of a token of so many characters; those not asked for longest make room."""
        self.drop(digest)
        size = _FRAME_BYTES + length * _BYTES_A_CHARACTER + len(proof.claims.scopes) * _BYTES_A_SCOPE
        self._proofs[digest] = (proof, size)
        self.bytes_held += size
        while self._proofs and (len(self._proofs) > self._max_entries or self.bytes_held > self._max_bytes):
            _, (_, freed) = self._proofs.popitem(last=False)
            self.bytes_held -= freed

    def drop(self, digest: bytes) -> None:
        """Forget a token, if it is known."""
        found = self._proofs.pop(digest, None)
        if found is not None:
            self.bytes_held -= found[1]


def token_digest(token: str) -> bytes:
    """What a token is found by."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

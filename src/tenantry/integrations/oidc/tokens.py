"""Tokens whose signature has been found good before."""

import hashlib
import logging
from collections import OrderedDict
from typing import Final

import msgspec
from joserfc.jwk import Key

from tenantry.common.clock import Clock, system_clock
from tenantry.domain.errors import AuthUnavailableError, InvalidCredentialError, TokenExpiredError
from tenantry.integrations.oidc.checks import (
    CLAIM_CHECKS,
    EXPIRY,
    HEADER_CHECKS,
    KEY,
    MAX_TOKEN_BYTES,
    TIME_CHECKS,
    CheckFailure,
    DecodedToken,
    Times,
    are_timely,
    first_failure,
)
from tenantry.integrations.oidc.claims import Claims, OidcConfig
from tenantry.integrations.oidc.explain import TokenExplanation, explanation
from tenantry.integrations.oidc.keys import KeySet

MAX_ENTRIES: Final = 10_000
MAX_BYTES: Final = 32 * 1024 * 1024
# The entry itself, its place in the table, and the objects in it that have one size.
_FRAME_BYTES: Final = 900
# A character of a token is at most three quarters of a byte of JSON, and each of those at most four in memory.
_BYTES_A_CHARACTER: Final = 3
_BYTES_A_SCOPE: Final = 60


class VerifiedToken(msgspec.Struct, frozen=True):
    """What is kept of a token: by which key it was proved, and what it says. Not the token."""

    kid: str | None
    alg: str
    key: Key
    times: Times
    claims: Claims


class VerifiedTokenCache:
    """The tokens proved most recently, found by the digest of the whole token; bounded in number and in bytes.

    A proof says that this key made the signature and that the checks that depend on the token alone passed. It does
    not say that the key is still published, nor that the token is still, or already, valid: ask that every time.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._proofs: OrderedDict[bytes, tuple[VerifiedToken, int]] = OrderedDict()
        self.bytes_held = 0
        """How much memory the proofs take, at most."""
        self.hits = 0

    def __len__(self) -> int:
        return len(self._proofs)

    def find(self, digest: bytes) -> VerifiedToken | None:
        """The proof of the token with this digest."""
        found = self._proofs.get(digest)
        if found is None:
            return None
        self._proofs.move_to_end(digest)
        self.hits += 1
        return found[0]

    def add(self, digest: bytes, proof: VerifiedToken, length: int) -> None:
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


# Verifying bearer tokens: JWT (RFC 7519) in JWS compact form (RFC 7515), by the rules of RFC 8725 and RFC 9068


__all__ = ["Claims", "TokenVerifier"]

_log = logging.getLogger(__name__)


class TokenVerifier:
    """Verifies the access tokens of one identity provider.

    Of a token that was proved before, the signature is not checked again. Its times are, and so is whether the very
    key that proved it is still published.
    """

    def __init__(
        self, config: OidcConfig, keys: KeySet, *, clock: Clock = system_clock, proven: VerifiedTokenCache | None = None
    ) -> None:
        self._config = config
        self._keys = keys
        self._clock = clock
        self._proven = VerifiedTokenCache() if proven is None else proven

    async def verify(self, token: str) -> Claims:
        """Return what ``token`` says, once every check has passed. The token itself is not kept.

        Raises `TokenExpiredError` when nothing but its age is wrong with it, `InvalidCredentialError` when anything
        else is, and `AuthUnavailableError` when the provider's keys are out of reach.
        """
        digest = token_digest(token) if len(token) <= MAX_TOKEN_BYTES else b""
        proof = self._proven.find(digest)
        is_proven = proof is not None and proof.key in self._keys.cached(proof.kid, proof.alg)
        now = self._clock().timestamp()
        if proof is not None and is_proven and are_timely(proof.times, now):
            return proof.claims
        reading = DecodedToken(token, self._config, self._keys)
        if proof is not None and is_proven:
            reading.times, reading.now = proof.times, now
            failure = first_failure(TIME_CHECKS, reading)
            if failure is None:
                return proof.claims
        else:
            failure = await self._first_failure(reading)
        if failure is not None:
            self._proven.drop(digest)
            _log.debug("bearer token refused: %s", failure.reason)
            raise refusal(failure)
        claims = reading.claims()
        proof = VerifiedToken(reading.kid, reading.header.alg, reading.key, reading.times, claims)
        self._proven.add(digest, proof, len(token))
        return claims

    async def explain(self, token: str) -> TokenExplanation:
        """Tell what becomes of ``token`` at each of the checks that `verify` makes, whatever was proved before."""
        reading = DecodedToken(token, self._config, self._keys)
        reading.now = self._clock().timestamp()
        try:
            failure = await self._first_failure(reading)
        except AuthUnavailableError as error:
            failure = CheckFailure(KEY, f"the provider's keys are out of reach: {self._keys.trouble or 'not known'}")
            return explanation(reading, failure, error)
        return explanation(reading, failure, refusal(failure) if failure else None)

    async def _first_failure(self, reading: DecodedToken) -> CheckFailure | None:
        failure = first_failure(HEADER_CHECKS, reading)
        if failure is not None:
            return failure
        reading.keys = await self._keys.key(reading.kid, reading.header.alg)
        reading.now = self._clock().timestamp()
        return first_failure(CLAIM_CHECKS, reading)


def refusal(failure: CheckFailure) -> InvalidCredentialError | TokenExpiredError:
    """What the caller is told of a failure: nothing, but that the token has expired where that is all."""
    if failure.check is EXPIRY:
        return TokenExpiredError("The bearer token has expired.")
    return InvalidCredentialError("The bearer token is not valid.")

"""Verifying bearer tokens: JWT (RFC 7519) in JWS compact form (RFC 7515), by the rules of RFC 8725 and RFC 9068."""

import logging

from tenantry.common.clock import Clock, system_clock
from tenantry.domain.errors import AuthUnavailableError, InvalidCredentialError, TokenExpiredError
from tenantry.integrations.oidc.checks import (
    CLAIM_CHECKS,
    EXPIRY,
    HEADER_CHECKS,
    KEY,
    MAX_TOKEN_BYTES,
    TIME_CHECKS,
    Failure,
    Reading,
    are_timely,
    first_failure,
)
from tenantry.integrations.oidc.claims import Claims
from tenantry.integrations.oidc.config import OidcConfig
from tenantry.integrations.oidc.explain import TokenExplanation, explanation
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.proven import Proof, ProvenTokens, token_digest

__all__ = ["Claims", "TokenVerifier"]

_log = logging.getLogger(__name__)


class TokenVerifier:
    """Verifies the access tokens of one identity provider.

    Of a token that was proved before, the signature is not checked again. Its times are, and so is whether the very
    key that proved it is still published.
    """

    def __init__(
        self, config: OidcConfig, keys: KeySet, *, clock: Clock = system_clock, proven: ProvenTokens | None = None
    ) -> None:
        self._config = config
        self._keys = keys
        self._clock = clock
        self._proven = ProvenTokens() if proven is None else proven

    async def verify(self, token: str) -> Claims:
        """Return what ``token`` says, once every check has passed. The token itself is not kept.

        Raises `TokenExpiredError` when nothing but its age is wrong with it, `InvalidCredentialError` when anything
        else is, and `AuthUnavailableError` when the provider's keys are out of reach.
        """
        digest = token_digest(token) if len(token) <= MAX_TOKEN_BYTES else b""
        proof = self._proven.find(digest)
        is_proven = proof is not None and proof.key in self._keys.at_hand(proof.kid, proof.alg)
        now = self._clock().timestamp()
        if proof is not None and is_proven and are_timely(proof.times, now):
            return proof.claims
        reading = Reading(token, self._config, self._keys)
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
        proof = Proof(reading.kid, reading.header.alg, reading.key, reading.times, claims)
        self._proven.add(digest, proof, len(token))
        return claims

    async def explain(self, token: str) -> TokenExplanation:
        """Tell what becomes of ``token`` at each of the checks that `verify` makes, whatever was proved before."""
        reading = Reading(token, self._config, self._keys)
        reading.now = self._clock().timestamp()
        try:
            failure = await self._first_failure(reading)
        except AuthUnavailableError as error:
            failure = Failure(KEY, f"the provider's keys are out of reach: {self._keys.trouble or 'not known'}")
            return explanation(reading, failure, error)
        return explanation(reading, failure, refusal(failure) if failure else None)

    async def _first_failure(self, reading: Reading) -> Failure | None:
        failure = first_failure(HEADER_CHECKS, reading)
        if failure is not None:
            return failure
        reading.keys = await self._keys.key(reading.kid, reading.header.alg)
        reading.now = self._clock().timestamp()
        return first_failure(CLAIM_CHECKS, reading)


def refusal(failure: Failure) -> InvalidCredentialError | TokenExpiredError:
    """What the caller is told of a failure: nothing, but that the token has expired where that is all."""
    if failure.check is EXPIRY:
        return TokenExpiredError("The bearer token has expired.")
    return InvalidCredentialError("The bearer token is not valid.")

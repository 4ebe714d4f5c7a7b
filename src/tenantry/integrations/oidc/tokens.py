"""Verifies and explains tokens: JWT (RFC 7519) in JWS compact form (RFC 7515), with a cache of
verified ones.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec
from joserfc.jwk import Key

from tenantry.common.clock import Clock, system_clock
from tenantry.domain.errors import (
    AuthUnavailableError,
    DomainError,
    InvalidCredentialError,
    TokenExpiredError,
    TokenFault,
)
from tenantry.domain.issuers import Issuers
from tenantry.domain.roles import Roles
from tenantry.domain.telemetry import SILENT, Telemetry
from tenantry.integrations.oidc import claim_checks as checks
from tenantry.integrations.oidc.claims import Claims, OidcConfig, claim_at, decode, format_json
from tenantry.integrations.oidc.keys import KeySet

__all__ = ["Claims", "TokenVerifier"]

MAX_ENTRIES: Final = 10_000
MAX_BYTES: Final = 32 * 1024 * 1024
# Estimates of memory: an entry's objects of fixed size; a token's character is at most three
# quarters of a byte of JSON, and each of those at most four in memory.
_BYTES_PER_ENTRY: Final = 900
_BYTES_PER_CHARACTER: Final = 3
_BYTES_PER_SCOPE: Final = 60


class VerifiedToken(msgspec.Struct, frozen=True):
    """The key that verified a token, its times and its claims, without the token."""

    kid: str | None
    alg: str
    key: Key
    times: checks.Times
    claims: Claims


class VerifiedTokenCache:
    """The tokens verified most recently, by digest, bounded in number and bytes. Check key and
    times again.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[VerifiedToken, int]] = OrderedDict()
        self.bytes_held = 0  # an upper bound of the memory in use
        self.hits = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, digest: bytes) -> VerifiedToken | None:
        found = self._entries.get(digest)
        if found is None:
            return None
        self._entries.move_to_end(digest)
        self.hits += 1
        return found[0]

    def add(
        self,
        digest: bytes,
        verified: VerifiedToken,
        length: int,
    ) -> None:
        """Add the entry of a token of this many characters, and evict the least recently used
        ones.
        """
        self.drop(digest)
        size = (
            _BYTES_PER_ENTRY
            + length * _BYTES_PER_CHARACTER
            + len(verified.claims.scopes) * _BYTES_PER_SCOPE
        )
        self._entries[digest] = (verified, size)
        self.bytes_held += size
        while self._entries and (
            len(self._entries) > self._max_entries or self.bytes_held > self._max_bytes
        ):
            _, (_, freed) = self._entries.popitem(last=False)
            self.bytes_held -= freed

    def drop(self, digest: bytes) -> None:
        found = self._entries.pop(digest, None)
        if found is not None:
            self.bytes_held -= found[1]


class CheckResult(StrEnum):
    OK = "ok"
    FAILED = "failed"
    NOT_REACHED = "not reached"


class CheckStep(msgspec.Struct, frozen=True):
    """One check: what the token said (None if there is nothing to show), what was expected, why it
    failed.
    """

    name: str
    result: CheckResult
    said: str | None
    expected: str
    reason: str | None = None


class TokenExplanation(msgspec.Struct, frozen=True):
    """All checks in order, and the token's claims. It contains neither the token nor its signature.

    ``members`` are the claims in the token, None if they cannot be decoded; ``proven`` says whether
    the signature is valid. ``claims`` are set, and ``refusal`` is None, only for a valid token.
    ``role`` describes what a valid token says of the role. ``now`` is in seconds since the epoch.
    """

    refusal: DomainError | None
    steps: list[CheckStep]
    members: dict[str, Any] | None
    proven: bool
    claims: Claims | None
    role: str
    now: float


def token_digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class TokenVerifier:
    """Verifies an identity provider's access tokens. It verifies the signature of a cached token
    only once.
    """

    def __init__(
        self,
        config: OidcConfig,
        keys: KeySet,
        *,
        clock: Clock = system_clock,
        cache: VerifiedTokenCache | None = None,
        telemetry: Telemetry = SILENT,
    ) -> None:
        self._config = config
        self._telemetry = telemetry
        self._keys = keys
        self._clock = clock
        self._cache = VerifiedTokenCache() if cache is None else cache

    @property
    def issuers(self) -> Issuers:
        """The trusted issuers."""
        return self._config.issuers

    @property
    def roles(self) -> Roles:
        """The roles that a token may name."""
        return self._config.roles

    async def verify(self, token: str) -> Claims:
        """Return the claims of a token that passes all checks.

        Raises `TokenExpiredError` if only the expiry fails, `InvalidCredentialError` for any other
        failure, and `AuthUnavailableError` if the provider's keys are unavailable.
        """
        digest = token_digest(token) if len(token) <= checks.MAX_TOKEN_BYTES else b""
        decoded = checks.DecodedToken(token, self._config, self._keys)
        cached = self._cache.find(digest)
        if cached is None or cached.key not in self._keys.cached(cached.kid, cached.alg):
            return await self._verify_new(decoded, digest)
        decoded.times, decoded.now = cached.times, self._clock().timestamp()
        failure = checks.first_failure(checks.TIME_CHECKS, decoded)
        if failure is None:
            return cached.claims
        self._cache.drop(digest)
        raise _refusal(failure)

    async def _verify_new(self, token: checks.DecodedToken, digest: bytes) -> Claims:
        failure = await checks.check(token, self._clock)
        if failure is not None:
            self._cache.drop(digest)
            raise _refusal(failure)
        if not token.role.known:
            self._telemetry.role_unknown()
        claims = token.claims()
        verified = VerifiedToken(token.kid, token.header.alg, token.key, token.times, claims)
        self._cache.add(digest, verified, len(token.token))
        return claims

    async def explain(self, token: str) -> TokenExplanation:
        """Return the result of each check that `verify` makes, without the cache."""
        decoded = checks.DecodedToken(token, self._config, self._keys)
        decoded.now = self._clock().timestamp()
        try:
            failure = await checks.check(decoded, self._clock)
        except AuthUnavailableError as error:
            failure = checks.CheckFailure(
                checks.KEY,
                f"the provider's keys are unavailable: {self._keys.trouble or 'not known'}",
            )
            return _explanation(decoded, failure, error)
        return _explanation(decoded, failure, _refusal(failure) if failure else None)


def _refusal(failure: checks.CheckFailure) -> InvalidCredentialError | TokenExpiredError:
    """Make the refusal for the client, which only says whether the token has expired."""
    fault = TokenFault(failure.check.word, failure.reason)
    if failure.check is checks.EXPIRY:
        return TokenExpiredError("The bearer token has expired.", token_fault=fault)
    return InvalidCredentialError("The bearer token is not valid.", token_fault=fault)


def _explanation(
    token: checks.DecodedToken, failure: checks.CheckFailure | None, refusal: DomainError | None
) -> TokenExplanation:
    """Explain a token that has passed the checks up to ``failure``."""
    steps = list(_steps(token, failure))
    results = {step.name: step.result for step in steps}
    return TokenExplanation(
        refusal=refusal,
        steps=steps,
        members=_members(token) if results["form"] is CheckResult.OK else None,
        proven=results["signature"] is CheckResult.OK,
        claims=None if failure else token.claims(),
        role="" if failure else _described_role(token),
        now=token.now,
    )


def _described_role(token: checks.DecodedToken) -> str:
    name = token.config.role_claim
    roles = token.config.role_map
    found = token.role
    if found.role is None:
        return f"the token has no {name}"
    said = f"{name} is {format_json(claim_at(token.members, name))}"
    if found.known:
        return said
    return f"{said}, which is none of {', '.join(roles)}: map it with OIDC_ROLE_MAP"


def _steps(token: checks.DecodedToken, failure: checks.CheckFailure | None) -> Iterator[CheckStep]:
    remaining = iter(checks.CHECKS)
    for check in remaining:
        if failure is not None and check is failure.check:
            yield _step(token, check, CheckResult.FAILED, failure.reason)
            break
        yield _step(token, check, CheckResult.OK)
    for check in remaining:
        yield CheckStep(
            check.name,
            CheckResult.NOT_REACHED,
            None,
            check.expected(token),
        )


def _step(
    token: checks.DecodedToken,
    check: checks.Check,
    result: CheckResult,
    reason: str | None = None,
) -> CheckStep:
    said = check.said(token) or None
    return CheckStep(
        check.name,
        result,
        said,
        check.expected(token),
        reason,
    )


def _members(token: checks.DecodedToken) -> dict[str, Any] | None:
    try:
        members = decode(token.payload_segment)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) else None

"""How many proofs of tokens are kept, and which."""

from datetime import UTC, datetime

from tenantry.integrations.oidc.claim_checks import Times
from tenantry.integrations.oidc.claims import Claims
from tenantry.integrations.oidc.tokens import (
    MAX_BYTES,
    MAX_ENTRIES,
    VerifiedToken,
    VerifiedTokenCache,
    token_digest,
)
from tests.support.cases import cases
from tests.support.issuer import signing_key

LENGTH = 700


def proof(subject: str = "user_1", scopes: tuple[str, ...] = ()) -> VerifiedToken:
    claims = Claims(
        issuer="https://login.example.com",
        subject=subject,
        org_id="acme",
        role=None,
        scopes=scopes,
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
        expires_at=datetime(2026, 1, 1, tzinfo=UTC),
        email=None,
    )
    return VerifiedToken(
        "rsa-1", "RS256", signing_key("RS256", "rsa-1").private, Times(0, None, 1), claims
    )


def test_entry_is_found_by_the_token_s_digest() -> None:
    proven = VerifiedTokenCache()
    proven.add(token_digest("a.b.c"), proof("ann"), LENGTH)
    found = proven.find(token_digest("a.b.c"))
    assert found is not None
    assert found.claims.subject == "ann"


@cases("token", ["a.b.", "a.b.d", "a.b.c ", "A.b.c", "", "a.b.c\udc80"])
def test_another_token_is_not_found(token: str) -> None:
    proven = VerifiedTokenCache()
    proven.add(token_digest("a.b.c"), proof(), LENGTH)
    assert proven.find(token_digest(token)) is None


def test_least_recently_used_entries_are_evicted() -> None:
    proven = VerifiedTokenCache(max_entries=2)
    for token in ("first", "second"):
        proven.add(token_digest(token), proof(), LENGTH)
    proven.find(token_digest("first"))
    proven.add(token_digest("third"), proof(), LENGTH)
    assert [
        proven.find(token_digest(token)) is not None for token in ("first", "second", "third")
    ] == [
        True,
        False,
        True,
    ]


def test_bytes_are_bounded_too() -> None:
    proven = VerifiedTokenCache(max_bytes=100_000)
    for number in range(1000):
        proven.add(token_digest(str(number)), proof(), 8192)
    assert 0 < proven.bytes_held <= 100_000
    assert len(proven) == 100_000 // (proven.bytes_held // len(proven))


def test_too_large_entry_is_not_kept() -> None:
    proven = VerifiedTokenCache(max_bytes=1000)
    proven.add(token_digest("a"), proof(), 8192)
    assert (len(proven), proven.bytes_held) == (0, 0)


def test_many_small_scopes_count_by_their_size() -> None:
    few, many = VerifiedTokenCache(), VerifiedTokenCache()
    few.add(token_digest("a"), proof(), 8192)
    many.add(token_digest("a"), proof(scopes=("s",) * 3000), 8192)
    assert many.bytes_held - few.bytes_held >= 3000 * 8


def test_dropped_entry_does_not_count() -> None:
    proven = VerifiedTokenCache()
    for token in ("a", "b", "b"):
        proven.add(token_digest(token), proof(), LENGTH)
    proven.drop(token_digest("a"))
    proven.drop(token_digest("never there"))
    assert len(proven) == 1
    proven.drop(token_digest("b"))
    assert (len(proven), proven.bytes_held) == (0, 0)


def test_an_ordinary_token_leaves_room_for_as_many_as_are_kept() -> None:
    proven = VerifiedTokenCache()
    proven.add(token_digest("a"), proof(), LENGTH)
    assert proven.bytes_held * MAX_ENTRIES <= MAX_BYTES

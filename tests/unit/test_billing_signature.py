"""The signature of a provider event, against signatures made by the provider's own package."""

from typing import Final

import pytest
import stripe

from tenantry.integrations.stripe.signature import SignatureFault, SignatureVerifier, sign
from tests.support.signing import signature, v1

SECRET: Final = "whsec_0123456789abcdef"
OTHER_SECRET: Final = "whsec_fedcba9876543210"
BODY: Final = '{"id": "evt_1", "note": "Grüße"}'.encode()
NOW: Final = 1_772_366_400


def check(
    header: str | bytes, *, secrets: list[str] | None = None, now: float = NOW, body: bytes = BODY
) -> str | None:
    verifier = SignatureVerifier(secrets or [SECRET], 300)
    return verifier.check(header.encode() if isinstance(header, str) else header, body, now)


def header(*signatures: str, at: int | str = NOW) -> str:
    return ",".join([f"t={at}", *(f"v1={value}" for value in signatures)])


def test_a_header_made_by_the_provider_is_accepted() -> None:
    assert check(signature(BODY, secret=SECRET, at=NOW)) is None


def test_the_providers_package_accepts_our_own_signature() -> None:
    made = sign(BODY, SECRET, NOW)
    assert stripe.WebhookSignature.verify_header(BODY, made, SECRET)


def test_any_of_several_secrets_may_match() -> None:
    assert (
        check(signature(BODY, secret=OTHER_SECRET, at=NOW), secrets=[SECRET, OTHER_SECRET]) is None
    )


def test_any_of_several_signatures_may_match() -> None:
    assert check(header("0" * 64, v1(BODY, secret=SECRET, at=NOW), "f" * 64)) is None


def test_the_wrong_secret_is_refused() -> None:
    assert check(signature(BODY, secret=OTHER_SECRET, at=NOW)) is SignatureFault.NO_MATCH


@pytest.mark.parametrize("body", [BODY + b" ", BODY[:-1], b""])
def test_another_body_is_refused(body: bytes) -> None:
    assert check(signature(BODY, secret=SECRET, at=NOW), body=body) is SignatureFault.NO_MATCH


def test_another_time_than_the_signed_one_is_refused() -> None:
    assert check(header(v1(BODY, secret=SECRET, at=NOW), at=NOW - 1)) is SignatureFault.NO_MATCH


def test_the_whole_secret_is_the_key() -> None:
    assert (
        check(signature(BODY, secret=SECRET.removeprefix("whsec_"), at=NOW))
        is SignatureFault.NO_MATCH
    )


@pytest.mark.parametrize(
    ("age", "refusal"),
    [
        (0, None),
        (300, None),
        (-300, None),
        (300.5, SignatureFault.TOO_OLD),
        (301, SignatureFault.TOO_OLD),
        (-301, SignatureFault.IN_FUTURE),
        (10**9, SignatureFault.TOO_OLD),
        (-(10**10), SignatureFault.IN_FUTURE),
    ],
)
def test_the_tolerance_counts_both_ways(age: float, refusal: SignatureFault | None) -> None:
    at = int(NOW - age) if age != 300.5 else NOW - 300
    now = NOW + 0.5 if age == 300.5 else NOW
    assert check(signature(BODY, secret=SECRET, at=at), now=now) == refusal


def test_a_forged_old_signature_is_called_a_mismatch() -> None:
    assert check(header("0" * 64, at=1)) is SignatureFault.NO_MATCH


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        " ",
        ",",
        "t=",
        "t",
        "v1",
        f"t={NOW}",
        f"t={NOW},",
        f"t={NOW},v1",
        f"t={NOW},v1=",
        f"t={NOW},v1=zz",
        f"v1={'0' * 64}",
        f"t=,v1={'0' * 64}",
        f"t=x,v1={'0' * 64}",
        f"t=-1,v1={'0' * 64}",
        f"t=1.5,v1={'0' * 64}",
        f"t={'9' * 13},v1={'0' * 64}",
        f"t={NOW};v1={'0' * 64}",
        f"t={NOW},v1={'0' * 63}",
        f"t={NOW},v1={'0' * 65}",
        f"T={NOW},V1={'0' * 64}",
        "a" * 100_000,
        "," * 100_000,
    ],
)
def test_a_malformed_header_is_refused(malformed: str) -> None:
    assert check(malformed) is SignatureFault.MALFORMED


def test_the_old_scheme_alone_is_refused() -> None:
    assert check(f"t={NOW},v0={v1(BODY, secret=SECRET, at=NOW)}") is SignatureFault.MALFORMED


def test_the_old_scheme_beside_the_present_one_is_ignored() -> None:
    assert check(header(v1(BODY, secret=SECRET, at=NOW)) + f",v0={'0' * 64}") is None


def test_two_times_are_refused() -> None:
    assert check(signature(BODY, secret=SECRET, at=NOW) + f",t={NOW}") is SignatureFault.MALFORMED


@pytest.mark.parametrize(
    "non_ascii",
    [
        f"t={NOW},v1=é".encode(),
        b"\xff\xfe" * 20,
        f"t={NOW},v1=".encode() + b"\xe9" * 64,
        f"t=١٢٣,v1={'0' * 64}".encode(),
    ],
)
def test_a_header_that_is_not_ascii_is_refused(non_ascii: bytes) -> None:
    assert check(non_ascii) in (SignatureFault.MALFORMED, SignatureFault.NO_MATCH)


def test_many_signatures_are_refused_before_they_are_compared() -> None:
    assert (
        check(header(*["0" * 64] * 1000, v1(BODY, secret=SECRET, at=NOW)))
        is SignatureFault.MALFORMED
    )


@pytest.mark.parametrize("secrets", [[], [""], [SECRET, ""]])
def test_no_verifier_works_with_an_empty_secret(secrets: list[str]) -> None:
    with pytest.raises(ValueError, match="secret"):
        SignatureVerifier(secrets, 300)


def test_a_signature_under_the_empty_secret_is_refused() -> None:
    assert check(signature(BODY, secret="", at=NOW)) is SignatureFault.NO_MATCH

"""Every digit of a signature counts: in the service's verifier, and in the SDK's."""

from collections.abc import Callable
from typing import Final

import pytest

from tenantry.integrations.stripe.signature import SignatureVerifier, sign
from tenantry_sdk import webhooks

SECRET: Final = "whsec_0123456789abcdef"
BODY: Final = b'{"id": "evt_1", "type": "x", "data": {"object": {}}}'
NOW: Final = 1_772_366_400
GOOD: Final = sign(BODY, SECRET, NOW)
DIGITS: Final = 64


def service_accepts(header: str) -> bool:
    return SignatureVerifier([SECRET], 300).check(header.encode(), BODY, NOW) is None


def sdk_accepts(header: str) -> bool:
    try:
        webhooks.verify_provider_event(BODY, {webhooks.PROVIDER_HEADER: header}, SECRET, now=NOW)
    except webhooks.SignatureError:
        return False
    return True


@pytest.mark.parametrize("accepts", [service_accepts, sdk_accepts])
def test_a_signature_with_one_other_digit_is_rejected(accepts: Callable[[str], bool]) -> None:
    assert accepts(GOOD)
    start = len(GOOD) - DIGITS
    for position in range(start, len(GOOD)):
        other = "1" if GOOD[position] != "1" else "2"
        altered = GOOD[:position] + other + GOOD[position + 1 :]
        assert not accepts(altered), f"digit {position - start} is not compared"

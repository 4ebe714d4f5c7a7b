"""The counts of what a request repeats."""

import msgspec
import pytest

from tenantry.domain.errors import HeadTooLargeError, ValidationError
from tenantry.integrations.stripe.signature import SignatureFault, SignatureVerifier, sign
from tenantry.server.problems import fault_of
from tenantry.server.repeated_items import (
    MAX_FIELDS,
    MAX_LIST_ITEMS,
    MAX_MEMBERS,
    MAX_PARAMETERS,
    MAX_SEGMENTS,
    check_items,
    check_members,
    check_query,
    has_too_many_fields,
    has_too_many_segments,
)
from tests.support.cases import cases

SECRET = "whsec_of_this_test_0123456789"


def test_segments_of_a_path() -> None:
    assert not has_too_many_segments("/a" * MAX_SEGMENTS)
    assert has_too_many_segments("/a" * (MAX_SEGMENTS + 1))


def test_encoded_slash_separates_no_segments() -> None:
    path = "/a" * (MAX_SEGMENTS + 1)
    assert not has_too_many_segments(path, b"/a" + b"%2Fa" * MAX_SEGMENTS)
    assert has_too_many_segments(path, path.encode())


def test_fields_of_a_form() -> None:
    assert not has_too_many_fields(b"&".join([b"a=b"] * MAX_FIELDS))
    assert has_too_many_fields(b"&".join([b"a=b"] * (MAX_FIELDS + 1)))


def test_parameters_of_a_query() -> None:
    check_query(b"&".join([b"a=b"] * MAX_PARAMETERS))
    with pytest.raises(HeadTooLargeError, match=r"^The query has more than 100 parameters\.$"):
        check_query(b"&".join([b"a=b"] * (MAX_PARAMETERS + 1)))


def test_members_of_a_body() -> None:
    check_members(msgspec.json.encode(["a:b"] * MAX_MEMBERS))
    with pytest.raises(ValidationError) as caught:
        check_members(msgspec.json.encode(["a:b"] * (MAX_MEMBERS + 1)))
    assert caught.value.faults == (("body", "has more than 4096 members and list items"),)


@cases("separator", [b",", b";", b"\\"])
def test_items_of_all_headers_count_together(separator: bytes) -> None:
    half = (b"a" + separator) * (MAX_LIST_ITEMS // 2 - 1)
    check_items([(b"accept", half), (b"cookie", half)])
    with pytest.raises(
        HeadTooLargeError, match=r"^The headers have more than 256 list items, .* cookies\.$"
    ):
        check_items([(b"accept", half), (b"cookie", half), (b"x-any", separator * 4)])


def test_browser_with_every_cookie_that_it_may_keep_is_within_the_limit() -> None:
    # Chromium's and Firefox's limit
    cookies = b"; ".join(b"cookie_%d=value" % number for number in range(180))
    agent = b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36"
    accept = b"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8"
    languages = b"en-US,en;q=0.9,de;q=0.8,fr;q=0.7"
    hints = b'"Chromium";v="142", "Not_A Brand";v="99", "Google Chrome";v="142"'
    headers = [
        (b"cookie", cookies),
        (b"user-agent", agent),
        (b"accept", accept),
        (b"accept-language", languages),
    ]
    check_items([*headers, (b"sec-ch-ua", hints), (b"x-forwarded-for", b"192.0.2.1, 10.0.0.1")])


def test_signatures_of_many_secrets() -> None:
    body, now = b"{}", 1_800_000_000
    verifier = SignatureVerifier([SECRET], 300)
    stamp, _, signature = sign(body, SECRET, now).partition(",")
    others = [f"v1={number:064x}" for number in range(15)]
    assert verifier.check(",".join([stamp, *others, signature]).encode(), body, now) is None
    many = ",".join([stamp, *(["v0=" + "0" * 64] * 63), signature])
    assert verifier.check(many.encode(), body, now) is SignatureFault.MALFORMED


def test_fault_of_a_long_name_is_short() -> None:
    class Body(msgspec.Struct, forbid_unknown_fields=True):
        name: str

    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(b'{"' + b"a" * 100_000 + b'":1}', type=Body)
    assert fault_of(caught.value) == ("a" * 200, "Object contains unknown field `" + "a" * 169)

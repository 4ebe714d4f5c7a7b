"""The links of invitations, and addresses in another form."""

from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest

from tenantry.common.logs import redact
from tenantry.common.secret import Secret
from tenantry.domain.invitation_links import InvitationLinks
from tenantry.domain.mail_addresses import comparable_address
from tenantry.domain.members import User
from tenantry.domain.owner_mails import limit_key

ID: Final = "inv_" + 32 * "0"
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
GRACE: Final = User("https://id.example", "grace")
FORMER: Final = Secret("former" * 8)
NEWEST: Final = Secret("newest" * 8)
LINKS: Final = InvitationLinks([FORMER], "https://app.example")


def proof_of(links: InvitationLinks, user: User = GRACE) -> str:
    query = parse_qs(urlsplit(links.confirmation(ID, user, NOW)).query)
    assert links.read(query["token"][0]) == ID
    return query["proof"][0]


def test_link_outlives_the_rotation_of_the_secret_while_the_old_one_is_listed() -> None:
    token = LINKS.token(ID)
    assert InvitationLinks([NEWEST, FORMER], "").read(token) == ID
    assert InvitationLinks([NEWEST], "").read(token) is None
    assert InvitationLinks([NEWEST, FORMER], "").token(ID) != token


def test_proof_counts_for_its_user_and_invitation_for_24_hours() -> None:
    proof = proof_of(LINKS)
    day = timedelta(days=1)
    assert LINKS.confirms(ID, GRACE, proof, NOW + day)
    assert not LINKS.confirms(ID, GRACE, proof, NOW + day + timedelta(seconds=1))
    assert not LINKS.confirms(ID[:-1] + "1", GRACE, proof, NOW)
    assert not LINKS.confirms(ID, User("https://id.example", "mallory"), proof, NOW)
    assert not LINKS.confirms(ID, User("https://other.example", "grace"), proof, NOW)


@pytest.mark.parametrize("proof", ["", ".", "9" * 13 + ".x", "999999999999." + 43 * "A"])
def test_malformed_or_forged_proof_confirms_nothing(proof: str) -> None:
    assert not LINKS.confirms(ID, GRACE, proof, NOW)


def test_token_of_a_link_is_no_proof_and_no_proof_a_token() -> None:
    token, proof = LINKS.token(ID), proof_of(LINKS)
    assert not LINKS.confirms(
        ID, GRACE, f"{proof.partition('.')[0]}.{token.partition('.')[2]}", NOW
    )
    assert LINKS.read(f"{ID}.{proof.partition('.')[2]}") is None


def test_log_masks_the_token() -> None:
    token = LINKS.token(ID)
    assert token.partition(".")[2] not in redact(f"opened {LINKS.link(ID)}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Ada@X.Example", "ada@x.example"),
        ("jose\u0301@x.example", "JOSÉ@x.example"),
        ("ada@MÜNCHEN.example", "ada@xn--mnchen-3ya.example"),
        ("ada@x\u3002example", "ada@x.example"),
        (" ada@x.example ", "ada@x.example"),
        ("ada@x.example.", "ada@x.example"),
    ],
)
def test_forms_of_one_address_compare_equal(one: str, other: str) -> None:
    assert comparable_address(one) == comparable_address(other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a.da@x.example", "ada@x.example"),
        ("ada+ci@x.example", "ada@x.example"),
        ("straße@x.example", "strasse@x.example"),
        ("ada@straße.example", "ada@strasse.example"),
        ("\u017fam@x.example", "sam@x.example"),
        ("\uff41da@x.example", "ada@x.example"),
        ("\u0130@x.example", "i@x.example"),
        ("\u0131@x.example", "i@x.example"),
    ],
)
def test_other_addresses_compare_unequal(one: str, other: str) -> None:
    assert comparable_address(one) != comparable_address(other)


def test_mails_to_each_unicode_form_of_an_address_are_counted_together() -> None:
    assert limit_key("jose\u0301@x.example") == limit_key("jos\u00e9@x.example")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ada@straße.example", "ada@xn--strae-oqa.example"),
        ("ada@FAẞ.example", "Ada@faß.example."),
        ("ada@münchen.example", "a.d.a+x@XN--mnchen-3ya.example"),
    ],
)
def test_mails_to_each_form_of_a_domain_are_counted_together(one: str, other: str) -> None:
    assert limit_key(one) == limit_key(other)


@pytest.mark.parametrize(
    "text", ["", "ada", "@x.example", "ada@", "ada@\u2488.example", "a\u202eb@x"]
)
def test_text_that_is_no_address_has_no_comparable_form(text: str) -> None:
    assert comparable_address(text) is None

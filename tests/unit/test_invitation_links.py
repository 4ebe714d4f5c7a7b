"""The links of invitations, and addresses in another form."""

from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from tenantry.common.redaction import redact
from tenantry.common.secret import Secret
from tenantry.domain.invitation_links import InvitationLinks
from tenantry.domain.mail_addresses import comparable_address
from tenantry.domain.owner_mails import limit_key
from tests.support.cases import cases

ID: Final = "inv_" + 32 * "0"
FORMER: Final = Secret("former" * 8)
NEWEST: Final = Secret("newest" * 8)
LINKS: Final = InvitationLinks([FORMER], "https://app.example")


def proof_of(links: InvitationLinks) -> str:
    query = parse_qs(urlsplit(links.mailed_link(ID)).query)
    assert links.read(query["token"][0]) == ID
    return query["proof"][0]


def test_link_outlives_the_rotation_of_the_secret_while_the_old_one_is_listed() -> None:
    token = LINKS.token(ID)
    assert InvitationLinks([NEWEST, FORMER], "").read(token) == ID
    assert InvitationLinks([NEWEST], "").read(token) is None
    assert InvitationLinks([NEWEST, FORMER], "").token(ID) != token


def test_proof_is_of_one_invitation_and_no_token() -> None:
    token, proof = LINKS.token(ID), proof_of(LINKS)
    assert LINKS.is_mailed(ID, proof)
    assert InvitationLinks([NEWEST, FORMER], "").is_mailed(ID, proof)
    assert not InvitationLinks([NEWEST], "").is_mailed(ID, proof)
    assert not LINKS.is_mailed(ID[:-1] + "1", proof)
    assert LINKS.read(f"{ID}.{proof}") is None
    for forged in ("", ".", proof[:-1], "é" + proof, token, token.partition(".")[2]):
        assert not LINKS.is_mailed(ID, forged)


def test_log_masks_the_token_and_the_proof() -> None:
    token, proof, link = LINKS.token(ID), proof_of(LINKS), LINKS.mailed_link(ID)
    for text in (link, quote(link, safe=""), link.replace("&", "&amp;")):
        masked = redact(f"opened {text} now")
        assert (token.partition(".")[2] in masked, proof in masked) == (False, False)
        assert masked.endswith(" now")


@cases(
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


@cases(
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


@cases(
    ("one", "other"),
    [
        ("ada@straße.example", "ada@xn--strae-oqa.example"),
        ("ada@FAẞ.example", "Ada@faß.example."),
        ("ada@münchen.example", "a.d.a+x@XN--mnchen-3ya.example"),
    ],
)
def test_mails_to_each_form_of_a_domain_are_counted_together(one: str, other: str) -> None:
    assert limit_key(one) == limit_key(other)


@cases("text", ["", "ada", "@x.example", "ada@", "ada@\u2488.example", "a\u202eb@x"])
def test_text_that_is_no_address_has_no_comparable_form(text: str) -> None:
    assert comparable_address(text) is None

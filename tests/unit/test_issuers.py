"""Which issuers are trusted."""

from tenantry.domain.issuers import Issuers
from tests.support.cases import cases

TEMPLATE = "https://login.example/{tenantid}/v2.0"
ONE = Issuers("https://id.example")
LISTED = Issuers(TEMPLATE, ("a", "b"))
ANY = Issuers(TEMPLATE, ("*",))


@cases(
    ("issuers", "issuer"),
    [
        (ONE, "https://id.example"),
        (LISTED, "https://login.example/a/v2.0"),
        (LISTED, "https://login.example/b/v2.0"),
        (ANY, "https://login.example/c/v2.0"),
    ],
)
def test_issuer_is_trusted(issuers: Issuers, issuer: str) -> None:
    assert issuers.trusts(issuer)


@cases(
    ("issuers", "issuer"),
    [
        (ONE, "https://id.example/"),
        (LISTED, "https://login.example/c/v2.0"),
        (LISTED, "https://login.example/*/v2.0"),
        (LISTED, TEMPLATE),
        (LISTED, "https://login.example//v2.0"),
        (LISTED, "https://login.example/v2.0"),
        (LISTED, "https://login.example/a/v2.0/"),
        (ANY, TEMPLATE),
        (ANY, "https://login.example/*/v2.0"),
        (ANY, "https://login.example/a/b/v2.0"),
        (ANY, "https://login.example/a.example/v2.0"),
        (ANY, "https://other.example/a/v2.0"),
        (Issuers("https://{tenantid}.example/{tenantid}", ("a", "b")), "https://a.example/b"),
    ],
)
def test_issuer_is_not_trusted(issuers: Issuers, issuer: str) -> None:
    assert not issuers.trusts(issuer)


def test_known_issuers_and_the_only_one() -> None:
    assert (ONE.known, ONE.only) == (["https://id.example"], "https://id.example")
    assert (LISTED.known, LISTED.only) == (
        ["https://login.example/a/v2.0", "https://login.example/b/v2.0"],
        None,
    )
    assert Issuers(TEMPLATE, ("a",)).only == "https://login.example/a/v2.0"
    assert (ANY.known, ANY.only) == ([], None)


def test_only_issuers_of_any_directory_have_a_pattern() -> None:
    assert ANY.pattern == "https://login.example/%/v2.0"
    assert (
        Issuers("https://a_b.example/100%/{tenantid}", ("*",)).pattern
        == "https://a\\_b.example/100\\%/%"
    )
    assert (ONE.pattern, LISTED.pattern) == (None, None)

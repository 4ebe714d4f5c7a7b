"""Who may open the operator's pages: the rules, and the settings that name them (CONTRACT 11.2)."""

from pathlib import Path
from typing import Any

import pytest

from tenantry.domain.members import User
from tenantry.domain.operators import OperatorRole, Operators
from tenantry.integrations.oidc.claims import operator_role, verified_email
from tenantry.settings import Settings, SettingsError
from tests.support.app import PEPPER, WEBHOOK_SECRET, make_settings
from tests.support.cases import cases
from tests.support.command_runner import invoke

ISSUER = "https://id.example"
TEMPLATE = "https://login.example/{tenantid}/v2.0"
VENDOR, CUSTOMER = TEMPLATE.format(tenantid="vendor"), TEMPLATE.format(tenantid="customer")
PROVIDER = {"OIDC_ISSUER": ISSUER, "OIDC_AUDIENCE": "api", "OIDC_CLIENT_ID": "dashboard"}
DIRECTORIES = {**PROVIDER, "OIDC_ISSUER": TEMPLATE, "OIDC_DIRECTORIES": "vendor,customer"}
ROLE = {"OPERATOR_ROLE_CLAIM": "staff.roles", "OPERATOR_ROLE": "support"}


def settings_of(**values: str) -> Settings:
    return make_settings(**{**PROVIDER, **values})


def faults_of(**values: str) -> list[str]:
    with pytest.raises(SettingsError) as error:
        make_settings(**values)
    return error.value.faults


def is_operator(
    operators: Operators, subject: str, *, email: object = None, verified: object = True
) -> bool:
    return operators.include(User(ISSUER, subject), verified_email(email, verified), None)


def test_nobody_is_an_operator_by_default() -> None:
    operators = settings_of().operators
    assert not operators.any
    assert not is_operator(operators, "ada", email="ada@vendor.example")
    assert not settings_of(OPERATORS=" , ").operators.any


@cases("subject", ["ada", "auth0|Ada", "00uX", "google-apps|ada@vendor.example"])
def test_a_subject_is_compared_exactly(subject: str) -> None:
    operators = settings_of(OPERATORS=f"else, {subject}").operators
    assert is_operator(operators, subject)
    for other in (subject.swapcase(), subject[:-1], subject + "x", f"else,{subject}", "", "*"):
        assert not is_operator(operators, other)
    assert not is_operator(operators, "eve", email=subject)


@cases(
    "email, verified",
    [
        ("Kim@vendor.example", True),
        ("kim@Vendor.example", True),
        ("kim+support@vendor.example", True),
        ("k.im@vendor.example", True),
        ("kim@vendor.example.evil.example", True),
        ("kim@vendor.example ", True),
        ("\u212aim@vendor.example", True),
        ("\uff4b\uff49\uff4d@vendor.example", True),
        ("kim@vendor\uff0eexample", True),
        ("kim@vendor.example\x00", True),
        ("kim@vendor.example", False),
        ("kim@vendor.example", None),
        ("kim@vendor.example", 1),
        ("kim@vendor.example", "True"),
        ("kim@vendor.example", "false"),
        (["kim@vendor.example"], True),
        (None, True),
    ],
)
def test_no_other_address_than_the_verified_one_counts(email: object, verified: object) -> None:
    operators = settings_of(OPERATORS="kim@vendor.example").operators
    assert is_operator(operators, "any", email="kim@vendor.example")
    assert not is_operator(operators, "any", email=email, verified=verified)


def test_a_subject_that_looks_like_an_address_is_no_address() -> None:
    operators = settings_of(OPERATORS="kim@vendor.example", OIDC_EMAIL_SUBJECTS="true").operators
    assert not is_operator(operators, "kim@vendor.example")


def test_users_of_another_issuer_are_no_operators() -> None:
    operators = settings_of(OPERATORS="kim,kim@vendor.example", **ROLE).operators
    for issuer in (ISSUER + "/", "http://id.example", CUSTOMER, ""):
        found = User(issuer, "kim")
        assert not operators.include(found, "kim@vendor.example", operators.role), issuer


def test_with_directories_only_a_pair_names_an_operator() -> None:
    settings = settings_of(**DIRECTORIES, OPERATORS=f"{VENDOR}  kim , {VENDOR} kim@x.example")
    operators = settings.operators
    assert operators.include(User(VENDOR, "kim"), None, None)
    assert operators.include(User(VENDOR, "kim@x.example"), None, None)
    for user in (User(CUSTOMER, "kim"), User(TEMPLATE, "kim"), User(VENDOR, "eve")):
        assert not operators.include(user, "kim@x.example", OperatorRole("roles", "support"))


def test_one_directory_of_a_template_is_no_single_issuer() -> None:
    settings = settings_of(**{**DIRECTORIES, "OIDC_DIRECTORIES": "vendor"}, OPERATORS=f"{VENDOR} k")
    assert not settings.operators.include(User(VENDOR, f"{VENDOR} k"), f"{VENDOR} k", None)


@cases(
    "members",
    [
        {"staff": {"roles": "support"}},
        {"staff": {"roles": ["billing", "support"]}},
        {"staff.roles": "support"},
        {"staff.roles": ["support"], "staff": {"roles": "other"}},
    ],
)
def test_the_role_is_a_text_or_in_a_list(members: dict[str, Any]) -> None:
    settings = settings_of(**ROLE)
    assert settings.oidc is not None
    role = operator_role(members, settings.oidc)
    assert role is not None
    assert settings.operators.include(User(ISSUER, "any"), None, role)


@cases(
    "members",
    [
        {},
        {"staff": "support"},
        {"staff": ["roles", "support"]},
        {"roles": "support"},
        {"org_role": "support"},
        {"staff": {"roles": "Support"}},
        {"staff": {"roles": "support "}},
        {"staff": {"roles": "support,billing"}},
        {"staff": {"roles": "level-1-support"}},
        {"staff": {"roles": ["supporter"]}},
        {"staff": {"roles": [["support"]]}},
        {"staff": {"roles": ["support", 1]}},
        {"staff": {"roles": {"support": True}}},
        {"staff": {"roles": 1}},
        {"staff": {"roles": True}},
        {"staff": {"roles": None}},
        {"staff.roles": "other", "staff": {"roles": "support"}},
        {"Staff": {"Roles": "support"}},
    ],
)
def test_nothing_else_is_the_role(members: dict[str, Any]) -> None:
    for role_map in ("support=owner", "other=owner,Support=admin"):
        settings = settings_of(**ROLE, OIDC_ROLE_MAP=role_map)
        assert settings.oidc is not None
        role = operator_role(members, settings.oidc)
        assert not settings.operators.include(User(ISSUER, "any"), None, role)


def test_the_role_is_taken_as_the_provider_wrote_it() -> None:
    mapped = settings_of(**{**ROLE, "OPERATOR_ROLE": "owner"}, OIDC_ROLE_MAP="support=owner")
    assert mapped.oidc is not None
    assert operator_role({"staff": {"roles": "support"}}, mapped.oidc) is None
    assert operator_role({"staff": {"roles": "owner"}}, mapped.oidc) == mapped.operators.role


def test_a_role_of_a_former_setting_does_not_count() -> None:
    before = settings_of(**ROLE).operators.role
    for changed in ({"OPERATOR_ROLE": "other"}, {"OPERATOR_ROLE_CLAIM": "roles"}):
        now = settings_of(**{**ROLE, **changed}).operators
        assert not now.include(User(ISSUER, "any"), None, before)
    assert not settings_of(OPERATORS="ada").operators.include(User(ISSUER, "any"), None, before)


def test_every_process_has_the_same_operators() -> None:
    first = settings_of(OPERATORS="ada,kim@vendor.example", **ROLE).operators
    second = settings_of(OPERATORS=" kim@vendor.example , ada,, ada ", **ROLE).operators
    assert first == second


_NO_SIGN_IN = "needs OIDC_ISSUER and OIDC_CLIENT_ID, with which operators sign in"
_OF_TENANTS = (
    "is OIDC_ROLE_CLAIM, whose roles the administrators of tenants give: use another claim"
)
_PAIR = "must be `issuer subject`, with one of the issuers that OIDC_ISSUER accepts"
_ROLE_OF_DIRECTORY = (
    "administrators of each directory could give it, as OIDC_ISSUER contains {tenantid}: "
    "use OPERATORS"
)


@cases(
    "values, fault",
    [
        ({"OPERATORS": "ada"}, f"OPERATORS: {_NO_SIGN_IN}"),
        (ROLE, f"OPERATOR_ROLE_CLAIM: {_NO_SIGN_IN}"),
        (
            {"OIDC_ISSUER": ISSUER, "OIDC_AUDIENCE": "api", "OPERATORS": "ada"},
            f"OPERATORS: {_NO_SIGN_IN}",
        ),
        ({"OIDC_CLIENT_ID": "dashboard", "OPERATORS": "ada"}, f"OPERATORS: {_NO_SIGN_IN}"),
        (
            {**PROVIDER, "OPERATORS": "Ada@vendor.example"},
            "OPERATORS: 'Ada@vendor.example' is an address: write it in lower case",
        ),
        (
            {**PROVIDER, "OPERATORS": "ada@Vendor.example"},
            "OPERATORS: 'ada@Vendor.example' is an address: write it in lower case",
        ),
        (
            {**PROVIDER, "OPERATORS": "\u212aim@vendor.example"},
            "OPERATORS: '\u212aim@vendor.example' is neither a user's subject nor an address",
        ),
        ({**PROVIDER, "OPERATORS": "ada kim"}, "OPERATORS: 'ada kim' has a blank"),
        (
            {**PROVIDER, "OPERATORS": "ada kim bob"},
            "OPERATORS: 'ada kim bob' is neither a user's subject nor an address",
        ),
        (
            {**PROVIDER, "OPERATORS": f"{ISSUER} ada"},
            f"OPERATORS: '{ISSUER} ada' has a blank",
        ),
        (
            {**PROVIDER, "OPERATOR_ROLE": "support"},
            "OPERATOR_ROLE_CLAIM: set it together with OPERATOR_ROLE",
        ),
        (
            {**PROVIDER, "OPERATOR_ROLE_CLAIM": "roles", "OPERATOR_ROLE": " "},
            "OPERATOR_ROLE_CLAIM: set it together with OPERATOR_ROLE",
        ),
        (
            {**PROVIDER, **ROLE, "OIDC_ROLE_CLAIM": "staff.roles"},
            f"OPERATOR_ROLE_CLAIM: {_OF_TENANTS}",
        ),
        (
            {**PROVIDER, **ROLE, "OPERATOR_ROLE_CLAIM": "org_role"},
            f"OPERATOR_ROLE_CLAIM: {_OF_TENANTS}",
        ),
        (
            {**PROVIDER, **ROLE, "OPERATOR_ROLE_CLAIM": "staff roles"},
            "OPERATOR_ROLE_CLAIM: must be the name of one claim",
        ),
        ({**DIRECTORIES, **ROLE}, f"OPERATOR_ROLE: {_ROLE_OF_DIRECTORY}"),
        ({**DIRECTORIES, "OPERATORS": "ada"}, f"OPERATORS: 'ada' {_PAIR}"),
        ({**DIRECTORIES, "OPERATORS": "a@b.example"}, f"OPERATORS: 'a@b.example' {_PAIR}"),
        (
            {**DIRECTORIES, "OPERATORS": f"{TEMPLATE.format(tenantid='evil')} ada"},
            f"OPERATORS: '{TEMPLATE.format(tenantid='evil')} ada' {_PAIR}",
        ),
        (
            {**DIRECTORIES, "OPERATORS": f"{TEMPLATE} ada"},
            f"OPERATORS: '{TEMPLATE} ada' {_PAIR}",
        ),
    ],
)
def test_faulty_settings_stop_the_start(values: dict[str, str], fault: str) -> None:
    assert faults_of(**values) == [fault]


def test_the_service_does_not_start_with_them(tmp_path: Path) -> None:
    needed = {
        "DATABASE_URL": "postgresql://nowhere.invalid/x",
        "API_KEY_PEPPER": PEPPER,
        "PROVIDER_WEBHOOK_SECRET": WEBHOOK_SECRET,
        "SESSION_SECRET": "session-secret-of-the-tests-0123456789",
    }
    faulty = {"OPERATORS": "a b", "OPERATOR_ROLE": "support"}
    done = invoke("serve", folder=tmp_path, **needed, **PROVIDER, **faulty)
    assert (done.code, done.err.splitlines()) == (
        1,
        [
            "tenantry cannot start: 2 setting(s) are missing or faulty.",
            "  OPERATOR_ROLE_CLAIM: set it together with OPERATOR_ROLE",
            "  OPERATORS: 'a b' has a blank",
        ],
    )

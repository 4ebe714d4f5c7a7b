"""The plan catalog: what it says, and every fault it can have."""

import msgspec
import pytest

from tenantry.domain.features import Feature, feature_words
from tenantry.domain.plan_words import limit_words
from tenantry.domain.plans import Addon, CatalogError, Limits, Plan, parse_catalog
from tenantry.domain.scopes import CatalogScope
from tests.support.documentation import block_of

FREE = '[[plans]]\nid = "free"\n'
ADDON = '[[addons]]\nid = "more"\n'
SSO = '[[features]]\nid = "sso"\ntype = "boolean"\n'
SEATS = '[[features]]\nid = "seats"\ntype = "limit"\n'
CALLS = '[[features]]\nid = "calls"\ntype = "metered"\ncounts = "requests"\n'
REPORTS = '[[scopes]]\nid = "reports:read"\nname = "Read reports"\n'
EXPORTS = '[[features]]\nid = "exports"\ntype = "metered"\n'


def faults_of(text: str) -> list[str]:
    with pytest.raises(CatalogError) as error:
        parse_catalog(text)
    return error.value.faults


def test_plan_needs_no_more_than_its_id() -> None:
    assert parse_catalog(FREE).plans == (Plan("free", "free", (), Limits()),)


def test_plan_may_say_everything() -> None:
    catalog = parse_catalog(
        f'{FREE}[[plans]]\nid = "pro"\nname = "Professional"\nstripe_price_id = ["price_1", "price_2"]\n'
        "[plans.limits]\nprojects = 0\napi_keys = 10\nrequests_per_minute = 600\nrequests_per_minute_per_key = 60\n"
    )
    limits = Limits(
        projects=0, api_keys=10, requests_per_minute=600, requests_per_minute_per_key=60
    )
    assert catalog.plans[1] == Plan("pro", "Professional", ("price_1", "price_2"), limits, rank=1)
    assert catalog.limits("pro") == limits


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(), "no limits"),
        (Limits(projects=1, api_keys=0, members=1000), "1 project, 0 API keys, 1,000 members"),
        (
            Limits(requests_per_minute=1, requests_per_minute_per_key=60),
            "1 request a minute, 60 requests a minute per credential",
        ),
    ],
)
def test_limits_are_said_in_words(limits: Limits, words: str) -> None:
    assert limit_words(limits) == words


def test_price_means_its_plan_and_no_other() -> None:
    catalog = parse_catalog(f'{FREE}[[plans]]\nid = "pro"\nstripe_price_id = "price_1"\n')
    assert catalog.plan_of_price("price_1") == "pro"
    assert catalog.plan_of_price("price_2") is None


def test_plan_that_has_left_the_catalog_has_the_limits_of_free() -> None:
    catalog = parse_catalog(f"{FREE}[plans.limits]\nprojects = 3\n")
    assert "gone" not in catalog
    assert catalog.limits("gone") == Limits(projects=3)


def test_rank_is_the_position_unless_it_is_given() -> None:
    catalog = parse_catalog(f'{FREE}[[plans]]\nid = "trial"\nrank = -5\n[[plans]]\nid = "pro"\n')
    assert [catalog.rank(plan) for plan in ("trial", "gone", "free", "pro")] == [-5, -1, 0, 2]


def test_addon_has_prices_and_limits() -> None:
    catalog = parse_catalog(
        f'{FREE}{ADDON}stripe_price_id = ["price_1", "price_2"]\n[addons.limits]\nprojects = 10\n'
    )
    assert catalog.addons == (Addon("more", "more", ("price_1", "price_2"), Limits(projects=10)),)
    assert (catalog.addon_of_price("price_2"), catalog.plan_of_price("price_2")) == ("more", None)
    assert (catalog.addon_name("more"), catalog.addon_name("gone")) == ("more", "gone")
    assert catalog.price_ids == ["price_1", "price_2"]


def test_feature_may_say_everything() -> None:
    catalog = parse_catalog(
        f'{SSO}{SEATS}{EXPORTS}unit = "files"\nperiod = "billing"\n'
        f"{CALLS}{FREE}[plans.features]\nsso = true\nseats = 5\nexports = true\ncalls = 1000\n"
    )
    calls = Feature("calls", "metered", counts="requests")
    assert list(catalog.features.values()) == [
        Feature("sso", "boolean"),
        Feature("seats", "limit"),
        Feature("exports", "metered", "files", "billing"),
        calls,
    ]
    assert catalog.counts_requests == calls
    assert [each.usage_period for each in catalog.features.values()][2:] == ["billing", "month"]
    assert catalog.given_features("free") == {
        "sso": True,
        "seats": 5,
        "exports": True,
        "calls": 1000,
    }


def test_feature_is_shown_by_its_name() -> None:
    catalog = parse_catalog(
        f'{SSO}name = "Single sign-on"\n{SEATS}name = "Seats"\n{CALLS}{FREE}[plans.features]\ncalls = 1\n'
    )
    assert [catalog.feature_name(name) for name in ("sso", "calls", "gone")] == [
        "Single sign-on",
        "calls",
        "gone",
    ]
    words = [feature_words(catalog.features[name], 5) for name in ("sso", "seats", "calls")]
    assert words == ["Single sign-on", "5 Seats", "5 calls a month"]


def test_every_fault_of_what_is_given_has_its_own_message() -> None:
    faults = faults_of(
        f"{SSO}{FREE}[plans.features]\nsso = 2\nexports = 1\n{ADDON}[addons.features]\ncalls = 1\n"
    )
    assert faults == [
        "plan 'free': feature 'sso' is boolean: give true",
        "plan 'free': unknown feature 'exports'",
        "addon 'more': unknown feature 'calls'",
    ]


def test_invalid_feature_is_no_unknown_one() -> None:
    faults = faults_of(f'{SSO}unit = "x"\n{FREE}[plans.features]\nsso = true\n')
    assert faults == ["feature 'sso': a boolean feature has no unit"]


def test_plan_can_have_a_trial_and_seats_that_follow_members() -> None:
    catalog = parse_catalog(
        f'{FREE}[[plans]]\nid = "team"\ntrial_days = 14\nseats = "members"\n[[plans]]\nid = "pro"\n'
    )
    chosen = [(plan.id, plan.trial_days, plan.seats_follow_members) for plan in catalog.plans]
    assert chosen == [("free", 0, False), ("team", 14, True), ("pro", 0, False)]
    assert catalog.has_member_seats
    assert not parse_catalog(FREE).has_member_seats


def test_access_overrides_single_statuses() -> None:
    access = {"past_due": "none", "unpaid": "grace", "a_status_of_2030": "full"}
    table = "".join(f'{status} = "{state}"\n' for status, state in access.items())
    assert parse_catalog(f"{FREE}[access]\n{table}").access == access
    assert parse_catalog(FREE).access == {}


def test_catalogs_of_the_guides_are_valid() -> None:
    whole = parse_catalog(block_of("reference/plan-catalog.md", "[[plans]]"))
    requests = Limits(requests_per_minute=600, requests_per_minute_per_key=60)
    assert [plan.id for plan in whole.plans] == ["free", "pro"]
    assert whole.limits("free") == msgspec.structs.replace(
        requests, projects=3, api_keys=10, members=100
    )
    assert (
        parse_catalog(FREE + block_of("how-to/rate-limits.md", "[plans.limits]")).limits("free")
        == requests
    )
    features = parse_catalog(block_of("reference/plan-catalog.md", "[[features]]"))
    assert features.given_features("pro", [("team", 2)]) == {
        "sso": True,
        "seats": 25,
        "exports": 1000,
    }
    smallest = parse_catalog(block_of("how-to/configuration.md", "[[plans]]"))
    assert smallest.price_ids == ["price_pro"]
    [scope] = parse_catalog(FREE + block_of("reference/plan-catalog.md", "[[scopes]]")).scopes
    assert scope == CatalogScope(
        "reports:read", "Read reports", "See and download every report.", "Reports"
    )
    of_stripe = parse_catalog(block_of("how-to/stripe.md", "[[plans]]"))
    assert of_stripe.price_ids == ["price_1Qmonthly", "price_1Qyearly"]
    sold = parse_catalog(block_of("how-to/sell-plans.md", "[[plans]]"))
    assert [(plan.trial_days, plan.seats_follow_members) for plan in sold.plans] == [
        (0, False),
        (14, True),
        (0, False),
    ]
    assert parse_catalog(FREE + block_of("explanation/subscriptions.md", "[[addons]]")).addons
    assert parse_catalog(FREE + block_of("explanation/subscriptions.md", "[access]")).access == {
        "past_due": "none",
        "unpaid": "grace",
    }


ONE_FAULT = {
    "not TOML": ("[[plans]", "not TOML: "),
    "nested deeply": (f"plans = {'[' * 1500}", "not TOML: "),
    "long number": (f"plans = {'9' * 5000}", "not TOML: "),
    "unknown key": (f"version = 1\n{FREE}", "unknown key 'version'"),
    "no list": ('plans = "free"', "plans: must be a list of tables, [[plans]]"),
    "no tables": ('plans = ["free"]', "plans: must be a list of tables, [[plans]]"),
    "no free": (
        '[[plans]]\nid = "pro"',
        "the plan 'free' is missing: it is the fallback and downgrade plan",
    ),
    "empty": ("", "the plan 'free' is missing: it is the fallback and downgrade plan"),
    "a trial of the free plan": (
        f"{FREE}trial_days = 14",
        "plan 'free': trial_days and seats are of plans that are sold, and free is not",
    ),
    "no days of trial": (
        f'{FREE}[[plans]]\nid = "pro"\ntrial_days = 0',
        "plan 'pro': Expected `int` >= 1 - at `$.trial_days`",
    ),
    "more days of trial than two years": (
        f'{FREE}[[plans]]\nid = "pro"\ntrial_days = 731',
        "plan 'pro': Expected `int` <= 730 - at `$.trial_days`",
    ),
    "seats of other things": (
        f'{FREE}[[plans]]\nid = "pro"\nseats = "projects"',
        "plan 'pro': Invalid enum value 'projects' - at `$.seats`",
    ),
    "unknown plan key": (f"{FREE}price = 1", "plan 'free': Object contains unknown field `price`"),
    "no id": (
        f'{FREE}[[plans]]\nname = "Pro"',
        "plan number 2: Object missing required field `id`",
    ),
    "id with a space": (
        f'{FREE}[[plans]]\nid = "p q"',
        "plan 'p q': id must be 1 to 64 visible ASCII characters",
    ),
    "id with a newline": (
        f'{FREE}[[plans]]\nid = "p\\n"',
        "plan 'p\\n': id must be 1 to 64 visible ASCII",
    ),
    "id not ASCII": (
        f'{FREE}[[plans]]\nid = "prö"',
        "plan 'prö': id must be 1 to 64 visible ASCII characters",
    ),
    "long id": (
        f'{FREE}[[plans]]\nid = "{"p" * 65}"',
        f"plan '{'p' * 65}': id must be 1 to 64 visible",
    ),
    "id is a number": (f"{FREE}[[plans]]\nid = 7", "plan 7: Expected `str`, got `int` - at `$.id`"),
    "blank name": (f'{FREE}name = " "', "plan 'free': name must not be blank"),
    "name is a number": (
        f"{FREE}name = 1",
        "plan 'free': Expected `str | null`, got `int` - at `$.name`",
    ),
    "price is a number": (
        f"{FREE}stripe_price_id = 1",
        "plan 'free': Expected `str | array`, got `int`",
    ),
    "empty price": (f'{FREE}stripe_price_id = ""', "plan 'free': Expected `str` of length >= 1"),
    "price list of numbers": (
        f"{FREE}stripe_price_id = [1]",
        "plan 'free': Expected `str`, got `int`",
    ),
    "limits no table": (
        f"{FREE}limits = 3",
        "plan 'free': Expected `object`, got `int` - at `$.limits`",
    ),
    "unknown limit": (
        f"{FREE}[plans.limits]\nseats = 1",
        "plan 'free': Object contains unknown field `seats` - at `$.limits`. A limit of your own is",
    ),
    "negative limit": (
        f"{FREE}[plans.limits]\nprojects = -1",
        "plan 'free': Expected `int` >= 0 - at `$.limits.pro",
    ),
    "fraction": (
        f"{FREE}[plans.limits]\nprojects = 1.5",
        "plan 'free': Expected `int | null`, got `float` - at",
    ),
    "truth": (
        f"{FREE}[plans.limits]\nprojects = true",
        "plan 'free': Expected `int | null`, got `bool` - at",
    ),
    "huge limit": (
        f"{FREE}[plans.limits]\nprojects = 2147483648",
        "plan 'free': Expected `int` <= 2147483647",
    ),
    "plan twice": (f"{FREE}{FREE}", "plan 'free' occurs twice"),
    "price of two plans": (
        f'{FREE}stripe_price_id = "x"\n[[plans]]\nid = "pro"\nstripe_price_id = ["y", "x"]',
        "price 'x' occurs twice",
    ),
    "id is a list": (
        f"{FREE}[[plans]]\nid = [1]",
        "plan [1]: Expected `str`, got `array` - at `$.id`",
    ),
    "rank is a text": (
        f'{FREE}rank = "high"',
        "plan 'free': Expected `int | null`, got `str` - at `$.rank`",
    ),
    "rank is a truth": (
        f"{FREE}rank = true",
        "plan 'free': Expected `int | null`, got `bool` - at `$.rank`",
    ),
    "rank is a fraction": (
        f"{FREE}rank = 1.5",
        "plan 'free': Expected `int | null`, got `float` - at `$.rank`",
    ),
    "addons no list": (
        f'{FREE}[addons]\nid = "more"',
        "addons: must be a list of tables, [[addons]]",
    ),
    "addon without an id": (
        f'{FREE}[[addons]]\nname = "More"',
        "addon number 1: Object missing required field `id`",
    ),
    "addon with a rank": (
        f'{FREE}[[addons]]\nid = "more"\nrank = 1',
        "addon 'more': Object contains unknown field",
    ),
    "addon with an unknown limit": (
        f'{FREE}[[addons]]\nid = "more"\n[addons.limits]\nseats = 1',
        "addon 'more': Object contains unknown field",
    ),
    "addon with a negative limit": (
        f'{FREE}[[addons]]\nid = "more"\n[addons.limits]\nprojects = -1',
        "addon 'more': Expected `int` >= 0",
    ),
    "addon twice": (f"{FREE}{ADDON}{ADDON}", "addon 'more' occurs twice"),
    "price of a plan and an addon": (
        f'{FREE}stripe_price_id = "x"\n{ADDON}stripe_price_id = "x"',
        "price 'x' occurs twice",
    ),
    "access no table": (f'access = "full"\n{FREE}', "access: must be a table, [access]"),
    "unknown access": (
        f'{FREE}[access]\nunpaid = "half"',
        "access.unpaid: must be one of full, grace, none",
    ),
    "access is a truth": (
        f"{FREE}[access]\nunpaid = true",
        "access.unpaid: must be one of full, grace, none",
    ),
    "access is a list": (
        f'{FREE}[access]\nunpaid = ["full"]',
        "access.unpaid: must be one of full, grace, none",
    ),
    "access of an ended subscription": (
        f'{FREE}[access]\ncanceled = "full"',
        "access: a subscription that is canceled never has access",
    ),
    "access of one that never began": (
        f'{FREE}[access]\nincomplete_expired = "none"',
        "access: a subscription that is incomplete_expired never has access",
    ),
    "features no list": (f'{FREE}[features]\nid = "sso"', "features: must be a list of tables"),
    "feature without an id": (
        f'[[features]]\ntype = "boolean"\n{FREE}',
        "feature number 1: Object missing required field `id`",
    ),
    "feature without a type": (
        f'[[features]]\nid = "sso"\n{FREE}',
        "feature 'sso': Object missing required field `type`",
    ),
    "feature of an unknown type": (
        f'[[features]]\nid = "sso"\ntype = "flag"\n{FREE}',
        "feature 'sso': Invalid enum value 'flag' - at `$.type`",
    ),
    "feature with an unknown key": (
        f"{SSO}rollover = true\n{FREE}",
        "feature 'sso': Object contains unknown field `rollover`",
    ),
    "feature named with a capital": (
        f'[[features]]\nid = "SSO"\ntype = "boolean"\n{FREE}',
        "feature 'SSO': id must be 1 to 64 of a-z, 0-9, '_' and '-', and begin with a letter",
    ),
    "feature named with 65 letters": (
        f'[[features]]\nid = "{"s" * 65}"\ntype = "boolean"\n{FREE}',
        f"feature '{'s' * 65}': id must be 1 to 64 of",
    ),
    "feature twice": (f"{SSO}{SSO}{FREE}", "feature 'sso' occurs twice"),
    "period of a boolean": (
        f'{SSO}period = "month"\n{FREE}',
        "feature 'sso': a boolean feature has no period",
    ),
    "period of a limit": (
        f'{SEATS}period = "month"\n{FREE}',
        "feature 'seats': a limit feature has no period",
    ),
    "unknown period": (
        f'{EXPORTS}period = "week"\n{FREE}',
        "feature 'exports': Invalid enum value 'week' - at `$.period`",
    ),
    "limit that counts requests": (
        f'{SEATS}counts = "requests"\n{FREE}',
        "feature 'seats': only a metered feature counts requests",
    ),
    "unknown thing to count": (
        f'{EXPORTS}counts = "bytes"\n{FREE}',
        "feature 'exports': Invalid enum value 'bytes' - at `$.counts`",
    ),
    "unit of a boolean": (
        f'{SSO}unit = "logins"\n{FREE}',
        "feature 'sso': a boolean feature has no unit",
    ),
    "scope without a name": (
        f'{FREE}[[scopes]]\nid = "reports:read"',
        "scope 'reports:read': Object missing required field `name`",
    ),
    "scope of every action": (
        f'{FREE}[[scopes]]\nid = "reports:*"\nname = "Reports"',
        "scope 'reports:*': id must be resource:action, each of a-z, 0-9, '_' and '-'",
    ),
    "scope of tenantry": (
        f'{FREE}[[scopes]]\nid = "audit:read"\nname = "Audit"',
        "scope 'audit:read': is one of tenantry's own: choose another id",
    ),
    "scope twice": (
        f"{FREE}{REPORTS}{REPORTS}",
        "scope 'reports:read' occurs twice",
    ),
    "unknown key of a scope": (
        f"{FREE}{REPORTS}level = 1",
        "scope 'reports:read': Object contains unknown field `level`",
    ),
    "long sentence about a scope": (
        f'{FREE}{REPORTS}about = "{"a" * 201}"',
        "scope 'reports:read': about must be 1 to 200 printable characters",
    ),
    "blank group of a scope": (
        f'{FREE}{REPORTS}group = ""',
        "scope 'reports:read': group must be 1 to 60 printable characters",
    ),
    "blank name of a feature": (
        f'{SSO}name = " "\n{FREE}',
        "feature 'sso': name must be 1 to 60 printable characters",
    ),
    "name of a feature that turns the text": (
        f'{SSO}name = "a\\u202eb"\n{FREE}',
        "feature 'sso': name must be 1 to 60 printable characters",
    ),
    "blank unit": (
        f'{SEATS}unit = " "\n{FREE}',
        "feature 'seats': unit must be 1 to 32 printable characters",
    ),
    "two features that count requests": (
        f'{EXPORTS}counts = "requests"\n{CALLS}{FREE}[plans.features]\nexports = 1\ncalls = 1',
        "exports, calls: only one feature may count requests",
    ),
    "plan without the feature that counts requests": (
        f'{EXPORTS}counts = "requests"\n{FREE}',
        "plan 'free': lacks the feature 'exports', so that every request would be rejected",
    ),
    "plan with an unknown feature": (
        f"{FREE}[plans.features]\nsso = true",
        "plan 'free': unknown feature 'sso'",
    ),
    "addon with an unknown feature": (
        f"{FREE}{ADDON}[addons.features]\nsso = true",
        "addon 'more': unknown feature 'sso'",
    ),
    "number for a boolean": (
        f"{SSO}{FREE}[plans.features]\nsso = 1",
        "plan 'free': feature 'sso' is boolean: give true",
    ),
    "false": (
        f"{SSO}{FREE}[plans.features]\nsso = false",
        "plan 'free': feature 'sso' is false: leave it out, and it is denied",
    ),
    "nothing of a feature": (
        f"{SEATS}{FREE}[plans.features]\nseats = 0",
        "plan 'free': feature 'seats': give true or a whole number from 1 to 9007199254740991",
    ),
    "more than JSON can say": (
        f"{SEATS}{FREE}[plans.features]\nseats = 9007199254740992",
        "plan 'free': feature 'seats': give true or a whole number from 1",
    ),
    "fraction of a feature": (
        f"{SEATS}{FREE}[plans.features]\nseats = 1.5",
        "plan 'free': feature 'seats': give true or a whole number from 1",
    ),
    "text for a feature": (
        f'{SEATS}{FREE}[plans.features]\nseats = "many"',
        "plan 'free': feature 'seats': give true or a whole number from 1",
    ),
    "features of a plan no table": (
        f"{FREE}features = true",
        "plan 'free': Expected `object`, got `bool` - at `$.features`",
    ),
    "price twice in a plan": (f'{FREE}stripe_price_id = ["x", "x"]', "price 'x' occurs twice"),
}


def test_catalog_error_is_named() -> None:
    for name, (text, message) in ONE_FAULT.items():
        faults = faults_of(text)
        assert len(faults) == 1, name
        assert faults[0].startswith(message), name


def test_every_invalid_plan_has_its_own_message() -> None:
    faults = faults_of(
        'colour = "red"\n[[plans]]\nid = "pro"\nseats = 1\n[plans.limits]\nprojects = "many"\n'
    )
    assert [fault.partition(":")[0] for fault in faults] == [
        "unknown key 'colour'",
        "plan 'pro'",
        "the plan 'free' is missing",
    ]

"""The plan catalog: what it says, and every fault it can have."""

import pytest

from tenantry.domain.plans import CatalogError, Limits, Plan, parse_catalog

FREE = '[[plans]]\nid = "free"\n'


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
    limits = Limits(projects=0, api_keys=10, requests_per_minute=600, requests_per_minute_per_key=60)
    assert catalog.plans[1] == Plan("pro", "Professional", ("price_1", "price_2"), limits, rank=1)
    assert catalog.limits("pro") == limits


def test_price_means_its_plan_and_no_other() -> None:
    catalog = parse_catalog(f'{FREE}[[plans]]\nid = "pro"\nstripe_price_id = "price_1"\n')
    assert catalog.plan_of_price("price_1") == "pro"
    assert catalog.plan_of_price("price_2") is None


def test_plan_that_has_left_the_catalog_has_the_limits_of_free() -> None:
    catalog = parse_catalog(f"{FREE}[plans.limits]\nprojects = 3\n")
    assert "gone" not in catalog
    assert catalog.limits("gone") == Limits(projects=3)


ONE_FAULT = {
    "not TOML": ("[[plans]", "not TOML: "),
    "unknown key": (f'version = 1\n{FREE}', "unknown key 'version'"),
    "no list": ('plans = "free"', "plans: must be a list of tables, [[plans]]"),
    "no tables": ('plans = ["free"]', "plans: must be a list of tables, [[plans]]"),
    "no free": ('[[plans]]\nid = "pro"', "the plan 'free' is missing: it is the fallback and downgrade plan"),
    "empty": ("", "the plan 'free' is missing: it is the fallback and downgrade plan"),
    "unknown plan key": (f"{FREE}price = 1", "plan 'free': Object contains unknown field `price`"),
    "no id": (f'{FREE}[[plans]]\nname = "Pro"', "plan number 2: Object missing required field `id`"),
    "id with a space": (f'{FREE}[[plans]]\nid = "p q"', "plan 'p q': id must be 1 to 64 visible ASCII characters"),
    "id with a newline": (f'{FREE}[[plans]]\nid = "p\\n"', "plan 'p\\n': id must be 1 to 64 visible ASCII"),
    "id not ASCII": (f'{FREE}[[plans]]\nid = "prö"', "plan 'prö': id must be 1 to 64 visible ASCII characters"),
    "long id": (f'{FREE}[[plans]]\nid = "{"p" * 65}"', f"plan '{'p' * 65}': id must be 1 to 64 visible"),
    "id is a number": (f"{FREE}[[plans]]\nid = 7", "plan 7: Expected `str`, got `int` - at `$.id`"),
    "blank name": (f'{FREE}name = " "', "plan 'free': name must not be blank"),
    "name is a number": (f"{FREE}name = 1", "plan 'free': Expected `str | null`, got `int` - at `$.name`"),
    "price is a number": (f"{FREE}stripe_price_id = 1", "plan 'free': Expected `str | array`, got `int`"),
    "empty price": (f'{FREE}stripe_price_id = ""', "plan 'free': Expected `str` of length >= 1"),
    "price list of numbers": (f"{FREE}stripe_price_id = [1]", "plan 'free': Expected `str`, got `int`"),
    "limits no table": (f"{FREE}limits = 3", "plan 'free': Expected `object`, got `int` - at `$.limits`"),
    "unknown limit": (f"{FREE}[plans.limits]\nseats = 1", "plan 'free': Object contains unknown field `seats`"),
    "negative limit": (f"{FREE}[plans.limits]\nprojects = -1", "plan 'free': Expected `int` >= 0 - at `$.limits.pro"),
    "fraction": (f"{FREE}[plans.limits]\nprojects = 1.5", "plan 'free': Expected `int | null`, got `float` - at"),
    "truth": (f"{FREE}[plans.limits]\nprojects = true", "plan 'free': Expected `int | null`, got `bool` - at"),
    "huge limit": (f"{FREE}[plans.limits]\nprojects = 2147483648", "plan 'free': Expected `int` <= 2147483647"),
    "plan twice": (f"{FREE}{FREE}", "plan 'free' occurs twice"),
    "price of two plans": (
        f'{FREE}stripe_price_id = "x"\n[[plans]]\nid = "pro"\nstripe_price_id = ["y", "x"]',
        "price 'x' occurs twice",
    ),
    "price twice in a plan": (f'{FREE}stripe_price_id = ["x", "x"]', "price 'x' occurs twice"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), ONE_FAULT.values(), ids=ONE_FAULT)
def test_catalog_error_is_named(text: str, message: str) -> None:
    faults = faults_of(text)
    assert len(faults) == 1
    assert faults[0].startswith(message)


def test_every_invalid_plan_has_its_own_message() -> None:
    faults = faults_of('colour = "red"\n[[plans]]\nid = "pro"\nseats = 1\n[plans.limits]\nprojects = "many"\n')
    assert [fault.partition(":")[0] for fault in faults] == [
        "unknown key 'colour'",
        "plan 'pro'",
        "the plan 'free' is missing",
    ]

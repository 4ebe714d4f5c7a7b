"""The operator's page of what a customer has and why, and the changes of its links and grants."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tenantry.billing.grants import GrantService
from tenantry.common.clock import system_clock
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.grants import GrantInput
from tenantry.domain.plans import parse_catalog
from tests.integration.dashboard.operator_trails import check_trails, count_acts
from tests.support.billing import until_blocked
from tests.support.catalogs import catalog_file
from tests.support.dashboard import (
    ACME,
    AT_ACME,
    BETA,
    CUSTOMER,
    OLGA,
    OLIVIA,
    Dashboard,
    Person,
    running_dashboard,
)
from tests.support.dashboard_page import Page
from tests.support.events import failed, updated
from tests.support.feature_catalog import CATALOG
from tests.support.patience import patient_database

BILLING: Final = f"/operator{AT_ACME}/billing"
LINK: Final = f"{BILLING}/customers/new"
MOVE: Final = f"{BILLING}/customers/{CUSTOMER}/move"
UNLINK: Final = f"{BILLING}/customers/{CUSTOMER}/unlink"
NEW_GRANT: Final = f"{BILLING}/grants/new"
CHANGE_GRANT: Final = f"{BILLING}/grants/contract/edit"
END_GRANT: Final = f"{BILLING}/grants/contract/end"
REASON: Final = "Contract 2027-014, by invoice"


@pytest.fixture
async def olga(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in(OLGA)


async def holder_of(dashboard: Dashboard, customer: str = CUSTOMER) -> str | None:
    rows = await dashboard.execute("SELECT tenant_id FROM customers WHERE id = %s", (customer,))
    return rows[0][0] if rows else None


async def grants_of(dashboard: Dashboard) -> dict[str, str]:
    """The reasons of acme's grants by their names."""
    page = await dashboard.operate("GET", f"/tenants/{ACME}/grants")
    return {grant["name"]: grant["reason"] for grant in page["data"]}


async def set_grant(olga: Person, **fields: str) -> None:
    given = {"name": "contract", "plan": "pro", "reason": REASON, **fields}
    page = await olga.send(await olga.open(NEW_GRANT), **given)
    assert page.path == BILLING, page.text


async def test_the_page_explains_the_state(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.deliver(updated())
    await dashboard.deliver(failed())
    await set_grant(olga, plan="business", ends="2034-01-01T00:00")
    page = await olga.open(BILLING)
    for text in (
        "A payment failed.",
        "By contract: Contract 2027-014, by invoice.",
        "1 Jan 2034, 00:00 UTC Plan business ends",
        "(grant contract).",
        CUSTOMER,
    ):
        assert text in page.text, text
    for text in ("You ", "Your ", " you ", " your "):
        assert text not in page.text


async def test_every_subscription_says_why_it_counts(conninfo: str, people: Path) -> None:
    async with running_dashboard(conninfo, people, SUBSCRIPTIONS="each") as dashboard:
        await dashboard.deliver(updated())
        await dashboard.deliver(updated(subscription_id="sub_other", price="price_business"))
        page = await (await dashboard.sign_in(OLGA)).open(BILLING)
    assert "sub_other decides the plan Business" in page.text
    assert "sub_acme Pro" in page.text


# Customers


async def test_a_customer_is_linked_with_its_events(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.deliver(updated(org=None, customer="cus_new", price="price_business"))
    page = await olga.send(await olga.open(LINK), customer="cus_new", reason="They paid by it")
    assert (page.path, page.status) == (BILLING, 200)
    assert "Customer linked." in page.text
    assert await holder_of(dashboard, "cus_new") == ACME
    assert (await dashboard.call("GET", f"/tenants/{ACME}"))["plan"] == "business"
    await check_trails(dashboard, "tenant.updated", "They paid by it")


@pytest.mark.parametrize("customer", ["", "cus acme", "x" * 256, "cus_\u00e4"])
async def test_an_invalid_customer_is_reported_beside_its_field(
    olga: Person, customer: str
) -> None:
    page = await olga.send(await olga.open(LINK), customer=customer)
    assert (page.status, page.focused) == (422, ["customer"])


async def test_a_taken_customer_is_moved_only_if_the_operator_says_so(
    dashboard: Dashboard, olga: Person
) -> None:
    page = await olga.send(await olga.open(LINK), customer="cus_beta")
    assert (page.status, page.focused) == (422, ["customer"])
    assert "It belongs to the organization beta." in page.text
    page = await olga.send(page)
    assert await holder_of(dashboard, "cus_beta") == BETA
    page = await olga.send(page, takenFrom=BETA, reason="They merged")
    assert page.path == BILLING
    assert await holder_of(dashboard, "cus_beta") == ACME
    await check_trails(dashboard, "tenant.updated", "They merged")
    await check_trails(dashboard, "tenant.updated", "They merged", BETA)


async def test_a_customer_is_not_taken_from_another_organization_than_shown(
    dashboard: Dashboard, olga: Person
) -> None:
    page = await olga.send(await olga.open(LINK), customer="cus_beta")
    await dashboard.operate(
        "PUT", "/tenants/gamma", {"name": "Gamma", "ownerEmail": "g@gamma.example"}
    )
    await dashboard.operate("PUT", "/operator/customers/cus_beta", {"orgId": "gamma", "move": True})
    page = await olga.send(page, takenFrom=BETA)
    assert "It belongs to the organization gamma." in page.text
    assert await holder_of(dashboard, "cus_beta") == "gamma"


async def test_a_customer_is_moved_to_another_organization(
    dashboard: Dashboard, olga: Person
) -> None:
    form = await olga.open(MOVE)
    for _ in range(2):
        page = await olga.send(form, orgId=BETA, reason="They merged")
        assert "Customer moved, with its events." in page.text
    assert await holder_of(dashboard) == BETA
    await check_trails(dashboard, "tenant.updated", "They merged")
    await check_trails(dashboard, "tenant.updated", "They merged", BETA)
    assert await count_acts(dashboard) == 2


@pytest.mark.parametrize("target", ["", "nobody", ACME, "not an id"])
async def test_an_invalid_target_is_reported_beside_its_field(
    dashboard: Dashboard, olga: Person, target: str
) -> None:
    page = await olga.send(await olga.open(MOVE), orgId=target)
    assert (page.status, page.focused) == (422, ["orgId"])
    assert await holder_of(dashboard) == ACME


async def test_a_customer_is_unlinked_once(dashboard: Dashboard, olga: Person) -> None:
    form = await olga.open(UNLINK)
    for _ in range(2):
        page = await olga.send(form, reason="Linked by mistake")
        assert page.path == BILLING
    assert await holder_of(dashboard) is None
    await check_trails(dashboard, "tenant.updated", "Linked by mistake")
    assert await count_acts(dashboard) == 1


async def test_a_customer_that_moved_meanwhile_keeps_its_link(
    dashboard: Dashboard, olga: Person
) -> None:
    form = await olga.open(UNLINK)
    await dashboard.operate("PUT", f"/operator/customers/{CUSTOMER}", {"orgId": BETA, "move": True})
    assert (await olga.send(form)).path == BILLING
    assert await holder_of(dashboard) == BETA
    assert await count_acts(dashboard) == 0


async def test_customers_of_others_have_no_pages_here(dashboard: Dashboard, olga: Person) -> None:
    for customer in ("cus_beta", "cus_nobody", "%00"):
        for action in ("move", "unlink"):
            path = f"{BILLING}/customers/{customer}/{action}"
            assert (await olga.open(path)).status == 404
            sent = await olga.force(path, orgId=ACME, reason="x")
            assert sent.status in (200, 404)
    assert await holder_of(dashboard, "cus_beta") == BETA


# Grants


async def test_a_grant_is_set(dashboard: Dashboard, olga: Person) -> None:
    await set_grant(olga, ends="2034-01-01T00:00", **{"limit-projects": "500"})
    [grant] = (await dashboard.operate("GET", f"/tenants/{ACME}/grants"))["data"]
    assert grant["plan"] == "pro"
    assert grant["limits"] == {"projects": 500}
    assert grant["until"] == "2034-01-01T00:00:00Z"
    assert grant["reason"] == REASON
    await check_trails(dashboard, "grant.set", REASON)
    page = await (await dashboard.sign_in(OLIVIA)).open(f"{AT_ACME}/billing")
    assert REASON in page.text


async def test_a_grant_is_set_once(dashboard: Dashboard, olga: Person) -> None:
    form = await olga.open(NEW_GRANT)
    for _ in range(2):
        page = await olga.send(form, name="contract", plan="pro", reason=REASON)
        assert page.path == BILLING
    assert await count_acts(dashboard) == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "two words"}, "name"),
        ({"plan": ""}, "plan"),
        ({"plan": "free"}, "plan"),
        ({"plan": "gold"}, "plan"),
        ({"reason": ""}, "reason"),
        ({"reason": "x" * 501}, "reason"),
        ({"ends": "soon"}, "ends"),
        ({"ends": "2020-01-01T00:00"}, "ends"),
        ({"ends": "0001-01-01T00:00+14:00"}, "ends"),
        ({"ends": "9999-12-31T23:59-14:00"}, "ends"),
        ({"limit-projects": "-1"}, "limits"),
        ({"limit-projects": "9" * 16}, "limits"),
        ({"limit-members": "many"}, "limits"),
    ],
)
async def test_a_fault_is_reported_beside_its_field(
    dashboard: Dashboard, olga: Person, fields: dict[str, str], field: str
) -> None:
    given = {"name": "contract", "plan": "pro", "reason": REASON, **fields}
    page = await olga.send(await olga.open(NEW_GRANT), **given)
    assert (page.status, page.focused) == (422, [field])
    assert page.form().fields["limit-projects"] == [fields.get("limit-projects", "")]
    assert await grants_of(dashboard) == {}


async def test_all_faults_are_reported_at_once(olga: Person) -> None:
    page = await olga.send(await olga.open(NEW_GRANT), name="", ends="soon", reason="")
    assert "4 fields need a change" in page.text
    assert "Enter a name: up to 64 letters, digits, _ and -." in page.text
    assert "Enter a reason." in page.text


async def test_a_new_grant_does_not_replace_another(dashboard: Dashboard, olga: Person) -> None:
    await set_grant(olga)
    page = await olga.send(
        await olga.open(NEW_GRANT), name="contract", plan="business", reason="Another"
    )
    assert (page.status, page.focused) == (422, ["name"])
    assert await grants_of(dashboard) == {"contract": REASON}


async def test_a_grant_is_changed(dashboard: Dashboard, olga: Person) -> None:
    await set_grant(olga, ends="2034-01-01T00:00:07")
    page = await olga.open(CHANGE_GRANT)
    assert page.form().fields["ends"] == ["2034-01-01T00:00:07"]
    page = await olga.send(page, plan="business", reason="Extended")
    assert "Grant saved." in page.text
    assert await grants_of(dashboard) == {"contract": "Extended"}
    await check_trails(dashboard, "grant.set", "Extended")


async def test_a_grant_that_another_operator_changed_is_not_overwritten(
    dashboard: Dashboard, olga: Person
) -> None:
    await set_grant(olga)
    form = await olga.open(CHANGE_GRANT)
    other = await dashboard.sign_in(OLGA)
    await other.send(await other.open(CHANGE_GRANT), reason="Theirs")
    page = await olga.send(form, reason="Mine")
    assert (page.status, page.focused) == (422, ["plan"])
    assert "It is now: plan pro. Theirs." in page.text
    await olga.send(page, reason="Mine")
    assert await grants_of(dashboard) == {"contract": "Mine"}


async def test_an_untouched_form_does_not_undo_another_operators_change(
    dashboard: Dashboard, olga: Person
) -> None:
    await set_grant(olga)
    form = await olga.open(CHANGE_GRANT)
    other = await dashboard.sign_in(OLGA)
    await other.send(await other.open(CHANGE_GRANT), plan="business", reason="Theirs")
    page = await olga.send(form)
    assert (page.status, page.focused) == (422, ["plan"])
    assert "It is now: plan business. Theirs." in page.text
    assert await grants_of(dashboard) == {"contract": "Theirs"}
    await olga.send(page)
    assert await grants_of(dashboard) == {"contract": REASON}


async def test_an_untouched_form_writes_nothing(dashboard: Dashboard, olga: Person) -> None:
    await set_grant(olga)
    page = await olga.send(await olga.open(CHANGE_GRANT))
    assert "Grant saved." in page.text
    assert await count_acts(dashboard) == 1


async def test_a_grant_is_ended_once(dashboard: Dashboard, olga: Person) -> None:
    await set_grant(olga)
    form = await olga.open(END_GRANT)
    for _ in range(2):
        page = await olga.send(form, reason="Canceled by them")
        assert page.path == BILLING
    assert await grants_of(dashboard) == {}
    await check_trails(dashboard, "grant.ended", "Canceled by them")
    assert await count_acts(dashboard) == 2


async def test_there_are_only_pages_of_grants_that_count(olga: Person) -> None:
    assert (await olga.open(CHANGE_GRANT)).status == 404
    assert (await olga.open(END_GRANT)).status == 404
    assert (await olga.force(END_GRANT)).status == 404


async def send_at_once(dashboard: Dashboard, olga: Person, path: str) -> tuple[str, Person, Page]:
    """Let two operators send a form at once, with reasons of their own; return the reason that was
    saved, the other operator, and the page that rejects the form of that one.
    """
    other = await dashboard.sign_in(OLGA)
    forms = {"One": (olga, await olga.open(path)), "Two": (other, await other.open(path))}
    async with await psycopg.AsyncConnection.connect(dashboard.conninfo) as holder:
        await holder.execute("SELECT FROM tenants WHERE id = %s FOR UPDATE", (ACME,))
        async with asyncio.TaskGroup() as group:
            sent = {
                reason: group.create_task(
                    who.send(form, name="contract", plan="pro", reason=reason)
                )
                for reason, (who, form) in forms.items()
            }
            await until_blocked(dashboard.conninfo, 2)
            await holder.rollback()
    pages = {reason: task.result() for reason, task in sent.items()}
    [saved] = [reason for reason, page in pages.items() if page.status == 200]
    [rejected] = [reason for reason, page in pages.items() if page.status == 422]
    return saved, forms[rejected][0], pages[rejected]


async def test_two_new_grants_of_one_name_at_once_are_not_both_saved(
    dashboard: Dashboard, olga: Person
) -> None:
    saved, _, rejected = await send_at_once(dashboard, olga, NEW_GRANT)
    assert rejected.focused == ["name"]
    assert "There is a grant of this name. Change that one." in rejected.text
    assert await grants_of(dashboard) == {"contract": saved}
    assert await count_acts(dashboard) == 1


async def test_two_changes_of_a_grant_at_once_are_not_both_saved(
    dashboard: Dashboard, olga: Person
) -> None:
    await set_grant(olga)
    saved, other, rejected = await send_at_once(dashboard, olga, CHANGE_GRANT)
    assert rejected.focused == ["plan"]
    assert await grants_of(dashboard) == {"contract": saved}
    again = await other.send(rejected)
    assert f"It is now: plan pro. {saved}." in again.text


@pytest.mark.parametrize("path", [LINK, MOVE, UNLINK, NEW_GRANT])
async def test_an_organization_that_ended_meanwhile_is_not_changed(
    dashboard: Dashboard, olga: Person, path: str
) -> None:
    form = await olga.open(path)
    await dashboard.operate("DELETE", f"/tenants/{ACME}")
    page = await olga.send(
        form, customer="cus_new", orgId=BETA, name="contract", plan="pro", reason=REASON
    )
    assert page.status == 404
    assert await count_acts(dashboard) == 0


async def test_a_suspended_organization_gets_a_grant(dashboard: Dashboard, olga: Person) -> None:
    form = await olga.open(NEW_GRANT)
    await dashboard.operate("POST", f"/operator/tenants/{ACME}/suspend", {"reason": "Unpaid"})
    await olga.send(form, name="contract", plan="pro", reason=REASON)
    assert await grants_of(dashboard) == {"contract": REASON}


@pytest.fixture
async def with_features(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    plans = catalog_file(CATALOG)
    async with running_dashboard(conninfo, people, TENANTRY_PLANS=plans) as dashboard:
        yield dashboard


async def test_features_are_given_by_kind(with_features: Dashboard) -> None:
    olga = await with_features.sign_in(OLGA)
    given = {"feature-sso": "yes", "feature-seats": "7", "feature-exports": "Unlimited"}
    await set_grant(olga, plan="", **given)
    [grant] = (await with_features.operate("GET", f"/tenants/{ACME}/grants"))["data"]
    assert grant["features"] == {"sso": True, "seats": 7, "exports": True}
    form = (await olga.open(CHANGE_GRANT)).form()
    assert form.fields["feature-exports"] == ["unlimited"]
    assert form.fields["feature-sso"] == ["yes"]
    page = await olga.fill(form, **{"feature-seats": "some"})
    assert (page.status, page.focused) == (422, ["features"])
    assert "seats: enter a whole number, or unlimited." in page.text


async def test_what_left_the_catalog_is_not_taken_from_a_grant_unseen(
    conninfo: str, people: Path
) -> None:
    earlier = BillingPolicy(parse_catalog(CATALOG))
    wanted = GrantInput(REASON, "pro", {"sso": True, "seats": 7})
    smaller = catalog_file(
        '[[features]]\nid = "sso"\ntype = "boolean"\n[[plans]]\nid = "free"\n[[plans]]\nid = "basic"\n'
    )
    async with (
        running_dashboard(conninfo, people, TENANTRY_PLANS=smaller) as dashboard,
        patient_database(conninfo, 1) as database,
    ):
        grants = GrantService(database, earlier, Outbox(), system_clock)
        await grants.put(BY_OPERATOR, ACME, "contract", wanted)
        olga = await dashboard.sign_in(OLGA)
        form = await olga.open(CHANGE_GRANT)
        assert form.text.count("(no longer in the catalog)") == 2
        page = await olga.send(form, reason="Extended")
        assert (page.status, page.focused[1:]) == (422, ["plan"])
        assert "'pro' is not in the plan catalog." in page.text
        assert "Unknown feature 'seats'." in page.text
        page = await olga.send(page, plan="basic")
        assert (page.status, page.focused) == (422, ["features"])
        assert await grants_of(dashboard) == {"contract": REASON}
        assert (await olga.send(page, **{"feature-seats": ""})).path == BILLING
        assert await grants_of(dashboard) == {"contract": "Extended"}

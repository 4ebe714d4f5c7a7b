"""Flash messages: shown once, after the form that caused them, and not by an address."""

from typing import Final

from tests.support.dashboard import AT_ACME, OLIVIA, Dashboard, Person
from tests.support.dashboard_page import Page

MEMBERS: Final = f"{AT_ACME}/settings/members"
COOKIE: Final = "tenantry_notice"
REMOVED: Final = "Member removed. Their next request is rejected."


def says(page: Page) -> list[str]:
    """Return the flash messages of a page."""
    return [part.partition("<")[0] for part in page.html.split('role="status">')[1:]]


async def removal(dashboard: Dashboard, olivia: Person) -> str:
    """Remove a member; return the cookie of the redirect."""
    path = await dashboard.add_member("mia")
    answer = await olivia.client.post(f"{path}/remove", data={"form_token": olivia.form_token()})
    assert (answer.status_code, answer.headers["location"]) == (303, MEMBERS)
    assert "httponly; " in answer.headers["set-cookie"].lower()
    assert "samesite=lax" in answer.headers["set-cookie"].lower()
    proved = olivia.client.cookies.get(COOKIE)
    assert proved is not None
    return proved


async def test_message_is_shown_once_on_the_next_page(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await removal(dashboard, olivia)
    assert says(await olivia.open(MEMBERS)) == [REMOVED]
    assert says(await olivia.open(MEMBERS)) == []


async def test_message_is_shown_only_on_its_page(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await removal(dashboard, olivia)
    assert says(await olivia.open(f"{AT_ACME}/projects")) == []
    await olivia.get(MEMBERS, **{"sec-fetch-mode": "cors"})  # a script in another tab polls
    assert says(await olivia.open(MEMBERS)) == [REMOVED]


ADDRESSES: Final = (
    f"{MEMBERS}?done=removed",
    f"{MEMBERS}?done=added",
    f"{AT_ACME}/projects?done=deleted",
    "/account?done=ended",
    f"{AT_ACME}/billing?from=checkout&plan=pro",
    f"{AT_ACME}/billing?from=cancelled",
    f"{AT_ACME}/billing?from=portal",
    f"{AT_ACME}/billing/back?notice=CHECKED_OUT&plan=pro",
    f"{AT_ACME}/events?type=All+keys+are+revoked",
)


async def test_no_address_can_make_a_page_show_a_message(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    for address in ADDRESSES:
        page = await olivia.open(address)
        assert page.status == 200, address
        assert [said for said in says(page) if said] == [], address
        assert "revoked" not in page.text, address


async def test_message_signed_for_another_session_or_page_is_ignored(dashboard: Dashboard) -> None:
    olivia, elsewhere = await dashboard.sign_in(OLIVIA), await dashboard.sign_in(OLIVIA)
    proved = await removal(dashboard, olivia)
    name, _, proof = proved.partition(".")
    assert name == "MEMBER_REMOVED"
    for person, said in (
        (elsewhere, proved),
        (olivia, name),
        (olivia, f"MEMBER_ADDED.{proof}"),
        (olivia, f"{name}.{'0' * len(proof)}"),
        (olivia, f"<b>Pay here</b>.{proof}"),
    ):
        person.client.cookies.set(COOKIE, said, domain="127.0.0.1")
        page = await person.open(MEMBERS)
        assert page.status == 200
        assert says(page) == []
        assert "Pay" not in page.text

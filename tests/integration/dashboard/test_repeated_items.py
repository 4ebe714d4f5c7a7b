"""What a client may repeat in one request is counted before any work is done for a single item;
`tests/system` tries it on every address.
"""

import httpx2
import pytest

from tenantry.server.repeated_items import MAX_FIELDS
from tests.support.dashboard import AT_ACME, Dashboard
from tests.support.repeating_clients import MOST_ANONYMOUS_BYTES


def session_of(client: httpx2.AsyncClient) -> str:
    return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


async def test_sign_in_reads_the_newest_cookies_of_many(dashboard: Dashboard) -> None:
    sent = "; ".join(f"tenantry_sign_in_{number}=a" for number in range(200))
    answer = await dashboard.api.get("/sign-in/start", headers={"Cookie": sent})
    deleted = [
        line.partition("=")[0]
        for line in answer.headers.get_list("set-cookie")
        if "Max-Age=0" in line
    ]
    assert answer.status_code == 303
    assert sorted(deleted) == [f"tenantry_sign_in_{number}" for number in range(190, 200)]


@pytest.mark.parametrize(
    "name", ["tenantry_sign_in_(", "tenantry_sign_in_a b", "tenantry_sign_in_\u00fc"]
)
async def test_sign_in_ignores_cookies_that_it_did_not_set(dashboard: Dashboard, name: str) -> None:
    answer = await dashboard.api.get("/sign-in/start", headers={b"Cookie": f"{name}=a".encode()})
    assert answer.status_code == 303
    assert len(answer.headers.get_list("set-cookie")) == 1


async def test_form_is_shown_again_only_if_the_page_stays_small(dashboard: Dashboard) -> None:
    headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}
    for text, is_shown in (("a" * 20_000, True), ("'" * 40_000, False)):
        answer = await dashboard.api.post(
            f"{AT_ACME}/projects/new", content=f"name={text}", headers=headers
        )
        assert (answer.status_code, "keeps your input" in answer.text) == (401, is_shown)
        assert "Your session has ended" in answer.text
        assert len(answer.content) < MOST_ANONYMOUS_BYTES


async def test_form_with_too_many_fields_is_refused(dashboard: Dashboard) -> None:
    person = await dashboard.sign_in()
    page = await person.force(
        f"{AT_ACME}/projects/new", **{f"a{number}": "b" for number in range(MAX_FIELDS)}
    )
    assert page.status == 413
    assert "The form is too large. Go back and shorten it." in page.text

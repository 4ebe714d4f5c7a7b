"""Pages about a leaked key."""

from datetime import timedelta

from tests.integration.dashboard.keys import KEYS, NEW, add_key
from tests.support.dashboard import ADAM, AT_ACME, OLIVIA, Dashboard

OVERVIEW = f"{AT_ACME}/"


async def report(dashboard: Dashboard, secret: str) -> None:
    answer = await dashboard.api.post("/api/v1/api-keys/report-leak", json={"secret": secret})
    assert answer.status_code == 200


async def test_leak_is_shown_on_the_key_page_the_list_and_the_overview(
    dashboard: Dashboard,
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    leaked, secret = await add_key(dashboard, "Deploys")
    revoked, _ = await add_key(dashboard, "Old")
    await dashboard.call("DELETE", f"/api-keys/{revoked}")
    await report(dashboard, secret)
    page = await olivia.open(f"{KEYS}/{leaked}")
    assert "This key was reported as leaked" in page.text
    assert f"{NEW}?replaces={leaked}" in page.links
    assert "reported as leaked" not in (await olivia.open(f"{KEYS}/{revoked}")).text
    only = await olivia.open(f"{KEYS}?status=leaked")
    assert "Deploys" in only.text
    assert "Old" not in only.text
    assert '<span class="tag red">leaked</span>' in only.html
    overview = await olivia.open(OVERVIEW)
    assert (
        "A key was reported as leaked. It was revoked immediately. Deploys, reported"
        in overview.text
    )
    assert f"{NEW}?replaces={leaked}" in overview.links


async def test_replacement_of_a_leaked_key_resolves_the_warning(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    leaked, secret = await add_key(dashboard, "Deploys", scopes=["projects:read", "reports:read"])
    await report(dashboard, secret)
    form = await olivia.open(f"{NEW}?replaces={leaked}")
    fields = form.form(NEW).fields
    assert (fields["name"], fields["scope"], fields["own"]) == (
        ["Deploys"],
        ["projects:read"],
        ["reports:read"],
    )
    await olivia.send(form, NEW)
    [new, old] = (await dashboard.call("GET", "/api-keys"))["data"]
    assert (new["rotatedFrom"], old["supersededBy"]) == (leaked, new["id"])
    assert (old["status"], old["leakReportedAt"]) == ("revoked", old["revokedAt"])
    assert "was reported as leaked" not in (await olivia.open(OVERVIEW)).text
    page = await olivia.open(f"{KEYS}/{leaked}")
    assert "It was replaced by a new key." in page.text
    refused = await olivia.open(f"{NEW}?replaces={leaked}")
    assert refused.path == f"{KEYS}/{leaked}"
    assert "No key was created: this key already has a replacement" in refused.text
    [entry] = (await dashboard.call("GET", "/audit-events?action=api_key.rotated"))["data"]
    assert (entry["actorId"], entry["targetId"], entry["after"]) == (
        OLIVIA.sub,
        leaked,
        {"supersededBy": new["id"]},
    )


async def test_only_a_leaked_key_can_be_replaced(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    key_id, _ = await add_key(dashboard)
    assert (await olivia.open(f"{NEW}?replaces={key_id}")).path == f"{KEYS}/{key_id}"
    assert (await olivia.open(f"{NEW}?replaces=key_none")).status == 404
    form = (await olivia.open(NEW)).form(NEW).fields
    sent = await olivia.force(
        NEW, **{**form, "name": "Second", "scope": ["projects:read"], "replaces": key_id}
    )
    assert sent.path == f"{KEYS}/{key_id}"
    assert "No key was created" in sent.text
    assert len((await dashboard.call("GET", "/api-keys"))["data"]) == 1


async def test_admin_cannot_replace_a_leaked_owner_key(dashboard: Dashboard) -> None:
    adam = await dashboard.sign_in(ADAM)
    leaked, secret = await add_key(dashboard, "Root", accessLevel="OWNER")
    await report(dashboard, secret)
    for path in (f"{KEYS}/{leaked}", OVERVIEW):
        page = await adam.open(path)
        assert "reported as leaked" in page.text
        assert not [link for link in page.links if "replaces=" in link]
    assert (await adam.open(f"{NEW}?replaces={leaked}")).status == 403


async def test_leak_is_listed_for_thirty_days(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    leaked, secret = await add_key(dashboard, "Deploys")
    await report(dashboard, secret)
    for age, is_shown in ((timedelta(days=29), True), (timedelta(days=31), False)):
        await dashboard.execute(
            "UPDATE api_keys SET revoked_at = now() - %s WHERE id = %s", (age, leaked)
        )
        overview = (await olivia.open(OVERVIEW)).text
        assert ("A key was reported as leaked." in overview) is is_shown
    assert "This key was reported as leaked" in (await olivia.open(f"{KEYS}/{leaked}")).text

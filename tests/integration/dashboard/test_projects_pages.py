"""The pages of projects."""

import asyncio
from typing import Final

import pytest

from tests.support.dashboard import AT_ACME, MIA, OLIVIA, Dashboard
from tests.support.events import NOW, deleted, updated

PROJECTS: Final = f"{AT_ACME}/projects"
MARKUP: Final = '<script>alert("1")</script>'


async def create(dashboard: Dashboard, name: str, description: str | None = None) -> str:
    made = await dashboard.call("POST", "/projects", {"name": name, "description": description})
    return f"{PROJECTS}/{made['id']}"


async def names(dashboard: Dashboard) -> list[str]:
    return [project["name"] for project in (await dashboard.call("GET", "/projects"))["data"]]


async def test_empty_list_explains_projects(dashboard: Dashboard) -> None:
    page = await (await dashboard.sign_in(MIA)).open(PROJECTS)
    assert "Only this organization's members and keys" in page.text
    assert "The plan Free allows 3." in page.text
    assert f"{PROJECTS}/new" in page.links


async def test_a_project_is_created_and_shown(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    made = await mia.send(
        await mia.open(f"{PROJECTS}/new"), name="Website", description="One\r\n\r\nTwo"
    )
    assert (made.status, made.path.startswith(f"{PROJECTS}/proj_")) == (200, True)
    [project] = (await dashboard.call("GET", "/projects"))["data"]
    assert (project["name"], project["description"]) == ("Website", "One\n\nTwo")
    assert "Website" in (await mia.open(PROJECTS)).text
    assert "1 of 3" in (await mia.open(PROJECTS)).text


async def test_projects_are_searched_by_name_id_and_description(dashboard: Dashboard) -> None:
    website = await create(dashboard, "Website", "For customers")
    app = await create(dashboard, "Mobile App")
    mia = await dashboard.sign_in(MIA)

    async def shown(text: str) -> list[str]:
        links = (await mia.open(f"{PROJECTS}?search={text}")).links
        return [project for project in (app, website) if project in links]

    assert await shown("") == [app, website]
    assert await shown("WEBS") == [website]
    assert await shown("customers") == [website]
    assert await shown(app.rpartition("/")[2]) == [app]
    assert await shown("%25") == []
    assert "No project matches." in (await mia.open(f"{PROJECTS}?search=nothing")).text


async def test_oldest_projects_are_one_click_away(dashboard: Dashboard) -> None:
    await dashboard.deliver(updated())
    await dashboard.execute(
        "INSERT INTO projects (id, org_id, mode, name, created_at, updated_at) "
        "SELECT 'proj_' || n, 'acme', 'live', 'Project ' || n, now() + n * interval '1 ms', now() "
        "FROM generate_series(1, 27) AS n"
    )
    mia = await dashboard.sign_in(MIA)
    newest = await mia.open(PROJECTS)
    assert "1\u201325 of 27 projects" in newest.text
    [last] = [link for text, link in newest.anchors if text == "Last"]
    oldest = await mia.open(last)
    assert "3\u201327 of 27 projects" in oldest.text
    assert f"{PROJECTS}/proj_1" in oldest.links
    [first] = [link for text, link in oldest.anchors if text == "First"]
    assert f"{PROJECTS}/proj_27" in (await mia.open(first)).links


async def test_resubmitted_form_creates_one_project(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    form = await mia.open(f"{PROJECTS}/new")
    first = await mia.send(form, name="Once")
    again = await mia.send(form, name="Once")
    assert again.path == first.path
    assert await names(dashboard) == ["Once"]


async def test_resubmitted_edit_has_one_effect(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    path = await create(dashboard, "Old")
    form = await mia.open(f"{path}/edit")
    clicks = await asyncio.gather(*(mia.send(form, name="New") for _ in range(3)))
    assert {(click.status, click.path) for click in clicks} == {(200, path)}
    await dashboard.call("PATCH", f"/projects/{path.rpartition('/')[2]}", {"name": "Old"})
    again = await mia.send(form, name="New")
    assert (again.status, again.path) == (200, path)
    assert await names(dashboard) == ["Old"]


async def test_form_resubmitted_after_signing_in_again_creates_one_project(
    dashboard: Dashboard,
) -> None:
    before, after = await dashboard.sign_in(MIA), await dashboard.sign_in(MIA)
    form = (await before.open(f"{PROJECTS}/new")).form()
    first = await before.fill(form, name="Once")
    again = await after.fill(form, name="Once", form_token=after.form_token())
    assert again.path == first.path
    assert await names(dashboard) == ["Once"]


async def test_edit_without_a_once_token_changes_nothing(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    path = await create(dashboard, "Old")
    refused = await mia.send(await mia.open(f"{path}/edit"), name="New", once="")
    assert (refused.status, refused.heading()) == (400, "This form is incomplete")
    assert await names(dashboard) == ["Old"]


async def test_name_with_bidirectional_controls_is_rejected(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    path = await create(dashboard, "Old")
    for form in (f"{PROJECTS}/new", f"{path}/edit"):
        refused = await mia.send(await mia.open(form), name="Web\u202esite")
        assert (refused.status, refused.focused) == (422, ["name"])
        assert "Must not contain control characters, line breaks or bidirectional" in refused.text
    assert await names(dashboard) == ["Old"]


async def test_double_click_creates_one_project(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    form = await mia.open(f"{PROJECTS}/new")
    clicks = await asyncio.gather(*(mia.send(form, name="Twice") for _ in range(4)))
    assert {click.status for click in clicks} == {200}
    assert len({click.path for click in clicks}) == 1
    assert await names(dashboard) == ["Twice"]


async def test_form_without_a_once_token_creates_nothing(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    assert (await mia.force(f"{PROJECTS}/new", name="Loose", once="")).status == 400
    assert await names(dashboard) == []


async def test_form_changed_after_going_back_creates_another_project(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    form = await mia.open(f"{PROJECTS}/new")
    await mia.send(form, name="First")
    await mia.send(form, name="Second")
    assert sorted(await names(dashboard)) == ["First", "Second"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "Fill in this field."),
        ("x" * 201, "Use at most 200 characters"),
        ("a\x07b", "control characters"),
    ],
)
async def test_invalid_name_shows_an_error_and_keeps_the_input(
    dashboard: Dashboard, name: str, fault: str
) -> None:
    mia = await dashboard.sign_in(MIA)
    page = await mia.send(await mia.open(f"{PROJECTS}/new"), name=name, description="A description")
    assert page.status == 422
    assert fault in page.text
    assert page.focused == ["name"]
    assert "A description" in page.html
    assert 'aria-describedby="name-fault" aria-invalid="true"' in page.html
    assert await names(dashboard) == []


async def test_plan_limit_is_explained(dashboard: Dashboard) -> None:
    mia = await dashboard.sign_in(MIA)
    form = await mia.open(f"{PROJECTS}/new")
    for name in ("One", "Two", "Three"):
        await create(dashboard, name)
    refused = await mia.send(form, name="Four", description="to be kept")
    assert refused.status == 422
    assert "The plan Free allows 3 projects. Delete a project, or change the plan." in refused.text
    assert 'value="Four"' in refused.html
    assert refused.focused == ["name"]
    assert "<title>Not saved: " in refused.html
    full = await mia.open(PROJECTS)
    assert (
        "This organization has 3 projects, and the plan Free allows 3. Delete 1, or " in full.text
    )
    assert f"{PROJECTS}/new" not in full.links


async def test_page_over_the_limit_says_how_many_to_delete(dashboard: Dashboard) -> None:
    await dashboard.deliver(updated(created=NOW))
    for name in ("One", "Two", "Three", "Four", "Five"):
        await create(dashboard, name)
    await dashboard.deliver(deleted(created=NOW + 1))
    olivia = await dashboard.sign_in(OLIVIA)
    listed = (await olivia.open(PROJECTS)).text
    assert (
        "This organization has 5 projects, and the plan Free allows 3. Delete 3, or compare plans, to create another."
        in listed
    )
    assert (
        "The plan allows no more. 5 of 3 projects. Compare plans"
        in (await olivia.open(f"{AT_ACME}/")).text
    )


async def test_a_project_is_edited(dashboard: Dashboard) -> None:
    path = await create(dashboard, "Old", "gone soon")
    mia = await dashboard.sign_in(MIA)
    form = await mia.open(f"{path}/edit")
    assert form.form().fields["name"] == ["Old"]
    shown = await mia.send(form, name="New", description="")
    assert shown.path == path
    [project] = (await dashboard.call("GET", "/projects"))["data"]
    assert (project["name"], project["description"]) == ("New", None)


async def test_outdated_form_changes_only_edited_fields(dashboard: Dashboard) -> None:
    path = await create(dashboard, "Old", "of Olivia")
    mia = await dashboard.sign_in(MIA)
    form = await mia.open(f"{path}/edit")
    await dashboard.call("PATCH", path.replace(AT_ACME, ""), {"description": "of Adam"})
    assert (await mia.send(form, name="New")).path == path
    [project] = (await dashboard.call("GET", "/projects"))["data"]
    assert (project["name"], project["description"]) == ("New", "of Adam")


async def test_concurrent_change_needs_confirmation(dashboard: Dashboard) -> None:
    path = await create(dashboard, "Old", "of Olivia")
    mia = await dashboard.sign_in(MIA)
    form = await mia.open(f"{path}/edit")
    await dashboard.call(
        "PATCH", path.replace(AT_ACME, ""), {"name": "New", "description": "of Adam"}
    )
    asked = await mia.send(form, description="of Mia")
    assert asked.status == 422
    assert asked.focused == ["description"]
    assert "This was changed after you opened the form. It is now: of Adam." in asked.text
    fields = asked.form().fields
    assert (fields["name"], fields["description"]) == (["New"], ["of Mia"])
    assert (await mia.send(asked)).path == path
    [project] = (await dashboard.call("GET", "/projects"))["data"]
    assert (project["name"], project["description"]) == ("New", "of Mia")


async def test_a_project_is_deleted_by_typing_its_name(dashboard: Dashboard) -> None:
    path = await create(dashboard, "Website  of Acme")
    mia = await dashboard.sign_in(MIA)
    asked = await mia.open(f"{path}/delete")
    assert "To confirm, type Website of Acme" in asked.text
    wrong = await mia.send(asked, name="website of acme")
    assert (wrong.status, wrong.focused) == (422, ["name"])
    assert "Nothing was changed." in wrong.text
    assert wrong.form(f"{path}/delete").fields["name"] == ["website of acme"]
    done = await mia.send(asked, name="Website of Acme")
    assert (done.status, done.path) == (200, PROJECTS)
    assert "Project deleted." in done.text
    assert await names(dashboard) == []


@pytest.mark.parametrize("name", ["   ", "\u200b"])
async def test_invisible_name_is_not_confirmed_by_an_empty_field(
    dashboard: Dashboard, name: str
) -> None:
    path = await create(dashboard, name)
    mia = await dashboard.sign_in(MIA)
    assert (
        f'<a href="{path}"><bdi>{path.rpartition("/")[2]}</bdi></a>'
        in (await mia.open(PROJECTS)).html
    )
    assert (await mia.force(f"{path}/delete", name=name)).status == 422
    assert (await mia.force(f"{path}/delete", name=path.rpartition("/")[2])).status == 200


async def test_markup_in_names_and_descriptions_is_text(dashboard: Dashboard) -> None:
    path = await create(dashboard, MARKUP, f"</textarea>{MARKUP}")
    mia = await dashboard.sign_in(MIA)
    for page in (PROJECTS, path, f"{path}/edit", f"{path}/delete"):
        shown = await mia.open(page)
        assert shown.tags.count("script") == 1  # the dashboard's own
        assert MARKUP in shown.text or f"</textarea>{MARKUP}" in shown.text

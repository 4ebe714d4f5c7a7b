"""Create, read, change and delete projects."""

from tests.support.cases import cases
from tests.support.service import PROJECTS, Service, refusal


async def test_made_project_is_answered_with_its_record(service: Service) -> None:
    org = await service.organization()
    answer = await org.owner.post(PROJECTS, {"name": "Räksmörgås 🚀", "description": "two\nlines"})
    project = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{PROJECTS}/{project['id']}"
    assert project == {
        "id": project["id"],
        "orgId": org.id,
        "name": "Räksmörgås 🚀",
        "description": "two\nlines",
        "mode": "live",
        "createdAt": project["createdAt"],
        "updatedAt": project["createdAt"],
    }
    assert project["createdAt"].endswith("Z")
    assert (await org.owner.get(answer.headers["location"])).json() == project


async def test_description_may_be_left_out_or_null(service: Service) -> None:
    org = await service.organization()
    for body in ({"name": "a"}, {"name": "b", "description": None}):
        assert (await org.owner.post(PROJECTS, body)).json()["description"] is None


async def test_change_affects_the_given_fields_and_the_time(service: Service) -> None:
    org = await service.organization()
    project = (await org.owner.post(PROJECTS, {"name": "a", "description": "b"})).json()
    for change in ({"name": "c"}, {"description": "d"}, {"description": None}):
        answer = await org.owner.patch(f"{PROJECTS}/{project['id']}", change)
        assert answer.status_code == 200
        assert answer.json() == {**project, **change, "updatedAt": answer.json()["updatedAt"]}
        assert answer.json()["updatedAt"] > project["updatedAt"]
        project = answer.json()
        assert (await org.owner.get(f"{PROJECTS}/{project['id']}")).json() == project


async def test_deleted_project_is_404(service: Service) -> None:
    org = await service.organization()
    project = (await org.owner.post(PROJECTS, {"name": "a"})).json()
    path = f"{PROJECTS}/{project['id']}"
    answer = await org.owner.delete(path)
    assert (answer.status_code, answer.content) == (204, b"")
    assert refusal(await org.owner.get(path)) == (404, "not_found")
    assert refusal(await org.owner.patch(path, {"name": "b"})) == (404, "not_found")
    assert refusal(await org.owner.delete(path)) == (404, "not_found")
    assert (await org.owner.get(PROJECTS)).json() == {"data": [], "nextCursor": None}


@cases(
    ("body", "location"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a" * 201}, "name"),
        ({"name": 7}, "name"),
        ({"name": None}, "name"),
        ({"name": ["a"]}, "name"),
        ({"name": "a\x00"}, "name"),
        ({"name": "a\x1b[0m"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": "a", "description": "a" * 2001}, "description"),
        ({"name": "a", "description": "a\x00"}, "description"),
        ({"name": "a", "description": 1}, "description"),
        ({"name": "a", "orgId": "other"}, "orgId"),
        ({"name": "a", "mode": "test"}, "mode"),
        ({"name": "a", "id": "proj_1"}, "id"),
    ],
)
async def test_invalid_project_is_rejected(service: Service, body: object, location: str) -> None:
    org = await service.organization()
    answer = await org.owner.post(PROJECTS, body)
    assert refusal(answer) == (422, "validation_failed")
    assert [fault["location"] for fault in answer.json()["errors"]] == [location]
    assert (await org.owner.get(PROJECTS)).json()["data"] == []


async def test_project_of_another_tenant_answers_as_a_missing_one(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    theirs = (await other.owner.post(PROJECTS, {"name": "theirs"})).json()
    for method, body in (("GET", None), ("PATCH", {"name": "mine"}), ("DELETE", None)):
        answers = []
        for project_id in (theirs["id"], "proj_missing"):
            answer = await org.owner.call(method, f"{PROJECTS}/{project_id}", body)
            assert refusal(answer) == (404, "not_found")
            answers.append({**answer.json(), "requestId": ""})
        assert answers[0] == answers[1]
    assert (await org.owner.get(PROJECTS)).json()["data"] == []
    assert (await other.owner.get(f"{PROJECTS}/{theirs['id']}")).json() == theirs


async def test_reading_and_writing_need_a_scope_each(service: Service) -> None:
    org = await service.organization()
    reader = (await service.key(org.owner, org.id, "projects:read")).caller
    writer = (await service.key(org.owner, org.id, "projects:write")).caller
    path = f"{PROJECTS}/{(await writer.post(PROJECTS, {'name': 'a'})).json()['id']}"
    assert (await reader.get(path)).status_code == (await reader.get(PROJECTS)).status_code == 200
    for refused, scope in (
        (await reader.post(PROJECTS, {"name": "b"}), "projects:write"),
        (await reader.patch(path, {"name": "b"}), "projects:write"),
        (await reader.delete(path), "projects:write"),
        (await writer.get(path), "projects:read"),
        (await writer.get(PROJECTS), "projects:read"),
    ):
        assert refusal(refused) == (403, "insufficient_scope")
        assert refused.headers["www-authenticate"] == (
            f'Bearer realm="api", error="insufficient_scope", scope="{scope}"'
        )
    assert (await writer.delete(path)).status_code == 204


@cases("project_id", ["%00", "x" * 5000, "%ED%A0%80", "a%0Ab", "%F0%9F%92%A9"])
async def test_strange_ids_are_not_found(service: Service, project_id: str) -> None:
    org = await service.organization()
    assert refusal(await org.owner.get(f"{PROJECTS}/{project_id}"))[0] in (404, 405)

"""Lists: pages in order, newest first, without duplicates or gaps."""

from tests.support.service import KEYS, PROJECTS, TENANTS, Caller, Service, refusal

EVENTS = "/api/v1/billing/events"
LISTS = (PROJECTS, KEYS, TENANTS, EVENTS)


async def pages_of(caller: Caller, path: str, limit: int) -> list[list[str]]:
    """The ids on each page, by following the cursors."""
    pages = []
    cursor: dict[str, str] = {}
    while True:
        answer = (await caller.get(path, limit=limit, **cursor)).json()
        pages.append([one["id"] for one in answer["data"]])
        if answer["nextCursor"] is None:
            return pages
        cursor = {"cursor": answer["nextCursor"]}


async def test_pages_follow_one_another_newest_first(service: Service) -> None:
    org = await service.organization()
    keys = [org.key.id, *[(await service.key(org.owner, org.id, "a:b")).id for _ in range(5)]]
    newest_first = keys[::-1]
    assert await pages_of(org.owner, KEYS, 2) == [
        newest_first[:2],
        newest_first[2:4],
        newest_first[4:],
    ]
    assert await pages_of(org.owner, KEYS, 5) == [newest_first[:5], newest_first[5:]]
    assert await pages_of(org.owner, KEYS, 6) == [newest_first]


async def test_projects_are_paged_in_the_same_way(service: Service) -> None:
    org = await service.organization()
    projects = [(await org.owner.post(PROJECTS, {"name": name})).json()["id"] for name in "abc"]
    assert await pages_of(org.owner, PROJECTS, 1) == [[project] for project in projects[::-1]]


async def test_new_objects_do_not_shift_the_pages(service: Service) -> None:
    org = await service.organization()
    older = (await service.key(org.owner, org.id, "a:b")).id
    first = (await org.owner.get(KEYS, limit=1)).json()
    await service.key(org.owner, org.id, "a:b")
    second = (await org.owner.get(KEYS, limit=1, cursor=first["nextCursor"])).json()
    assert [key["id"] for key in first["data"] + second["data"]] == [older, org.key.id]


async def test_page_has_20_objects_by_default(service: Service) -> None:
    org = await service.organization()
    for _ in range(3):  # a rotation makes a key without counting as a new one
        current = await service.key(org.owner, org.id, "a:b")
        for _ in range(6):
            rotated = (await org.owner.post(f"{current.path}/rotate")).json()
            current = current._replace(record=rotated)
    assert [len(page) for page in await pages_of(org.owner, KEYS, 100)] == [22]
    answer = (await org.owner.get(KEYS)).json()
    assert len(answer["data"]) == 20
    assert answer["nextCursor"] is not None


async def test_cursor_of_one_tenant_shows_nothing_to_another(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    await service.key(org.owner, org.id, "a:b")
    cursor = (await org.owner.get(KEYS, limit=1)).json()["nextCursor"]
    listed = (await other.owner.get(KEYS, cursor=cursor)).json()["data"]
    assert all(key["orgId"] == other.id for key in listed)


async def test_bad_cursor_is_400_and_a_bad_limit_422_on_every_list(service: Service) -> None:
    org = await service.organization()
    for path in LISTS:
        for cursor in ("x", "", "%00", "é", "null", "a" * 1000):
            assert refusal(await org.owner.get(path, cursor=cursor)) == (400, "invalid_cursor"), (
                path,
                cursor,
            )
        for limit in ("0", "101", "-1", "", "ten", "9" * 30, "true"):
            answer = await org.owner.get(path, limit=limit)
            assert refusal(answer) == (422, "validation_failed"), (path, limit)
            assert answer.json()["errors"][0]["location"] == "limit"
        assert (await org.owner.get(path, limit=1)).status_code == 200
        assert (await org.owner.get(path, limit=100)).status_code == 200


async def test_overlong_cursor_is_refused(service: Service) -> None:
    org = await service.organization()
    for path in LISTS:
        assert refusal(await org.owner.get(path, cursor="a" * 1001)) == (422, "validation_failed")

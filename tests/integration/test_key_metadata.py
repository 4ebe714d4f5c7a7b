"""External ids and metadata of API keys: creation, changes, rotation, lists, and who reads them."""

from typing import Any

from tenantry.auth.api_keys_store import KeyFilter, read_page
from tenantry.db.connection import of_tenant
from tenantry.db.pagination import Window
from tests.support.cases import cases
from tests.support.issuer import NOW
from tests.support.patience import patient_database
from tests.support.service import KEYS, VERIFY, WHOAMI, Key, Organization, Service, refusal

METADATA = {"team": "growth", "Straße": "Zürich 7"}


async def made(service: Service, org: Organization, **fields: Any) -> Key:
    return await service.key(org.owner, org.id, "projects:read", **fields)


async def test_key_keeps_what_it_is_created_with(service: Service) -> None:
    org = await service.organization()
    key = await made(service, org, externalId="cus_4711", metadata=METADATA)
    shown = (await org.owner.get(key.path)).json()
    assert (shown["externalId"], shown["metadata"]) == ("cus_4711", METADATA)


async def test_whoami_and_the_gateway_check_name_them(service: Service) -> None:
    org = await service.organization()
    key = await made(service, org, externalId="cus_4711", metadata=METADATA)
    whoami = (await key.caller.get(WHOAMI)).json()
    assert (whoami["externalId"], whoami["metadata"]) == ("cus_4711", METADATA)
    answer = await key.caller.get(f"{VERIFY}projects:read")
    assert answer.headers["x-key-external-id"] == "cus_4711"


async def test_caller_without_them_has_none(service: Service) -> None:
    org = await service.organization()
    for caller in (org.owner, service.user("ada", org=org.id)):
        whoami = (await caller.get(WHOAMI)).json()
        assert (whoami["externalId"], whoami["metadata"]) == (None, {})
        assert "x-key-external-id" not in (await caller.get(f"{VERIFY}-")).headers


@cases(
    ("change", "external_id", "metadata"),
    [
        ({"name": "other"}, "cus_4711", METADATA),
        ({"externalId": "cus_4712"}, "cus_4712", METADATA),
        ({"externalId": None}, None, METADATA),
        ({"metadata": {"tier": "gold"}}, "cus_4711", {"tier": "gold"}),
        ({"metadata": None}, "cus_4711", {}),
        ({"metadata": {}}, "cus_4711", {}),
    ],
)
async def test_change_replaces_what_it_gives(
    service: Service, change: dict[str, Any], external_id: str | None, metadata: dict[str, str]
) -> None:
    org = await service.organization()
    key = await made(service, org, externalId="cus_4711", metadata=METADATA)
    changed = (await org.owner.patch(key.path, change)).json()
    assert (changed["externalId"], changed["metadata"]) == (external_id, metadata)
    assert (await org.owner.get(key.path)).json() == changed


async def test_change_is_in_the_audit_trail(service: Service) -> None:
    org = await service.organization()
    key = await made(service, org, externalId="cus_4711", metadata=METADATA)
    await org.owner.patch(key.path, {"externalId": None, "metadata": {"tier": "gold"}})
    trail = (await org.owner.get("/api/v1/audit-events", targetId=key.id)).json()["data"]
    updated, created = trail
    assert updated["before"] == {"externalId": "cus_4711", "metadata": METADATA}
    assert updated["after"] == {"externalId": None, "metadata": {"tier": "gold"}}
    assert created["after"]["metadata"] == METADATA


async def test_rotation_carries_them_over(service: Service) -> None:
    org = await service.organization()
    key = await made(service, org, externalId="cus_4711", metadata=METADATA)
    new = (await org.owner.post(f"{key.path}/rotate", {"overlapSeconds": 60})).json()
    assert (new["externalId"], new["metadata"]) == ("cus_4711", METADATA)


async def test_list_by_external_id_has_every_key_with_exactly_this_one(service: Service) -> None:
    org = await service.organization()
    other = await service.organization()
    await made(service, other, externalId="cus_4711")
    keys = [
        await made(service, org, externalId=text) for text in ("cus_4711", "cus_4711", "cus_47110")
    ]
    listed = (await org.owner.get(KEYS, externalId="cus_4711", limit=1)).json()
    assert [key["id"] for key in listed["data"]] == [keys[1].id]
    rest = (await org.owner.get(KEYS, externalId="cus_4711", cursor=listed["nextCursor"])).json()
    assert [key["id"] for key in rest["data"]] == [keys[0].id]
    assert rest["nextCursor"] is None
    assert (await org.owner.get(KEYS, externalId="CUS_4711")).json()["data"] == []


async def test_search_for_a_whole_secret_is_refused_and_not_repeated(service: Service) -> None:
    org = await service.organization()
    secret = str(org.owner.credential)
    answer = await org.owner.get(KEYS, search=secret)
    assert refusal(answer) == (422, "validation_failed")
    assert secret not in answer.text
    found = (await org.owner.get(KEYS, search=f"{secret[:13]}...{secret[-4:]}")).json()["data"]
    assert [key["id"] for key in found] == [org.key.id]


async def test_search_finds_a_part_of_the_external_id(service: Service) -> None:
    org = await service.organization()
    key = await made(service, org, externalId="cus_4711")
    listed = (await org.owner.get(KEYS, search="S_47")).json()["data"]
    assert [found["id"] for found in listed] == [key.id]


async def test_test_mode_caller_finds_test_keys_only(service: Service) -> None:
    org = await service.organization()
    await made(service, org, externalId="cus_4711")
    tester = await service.key(org.owner, org.id, "api-keys:*", mode="test")
    assert (await tester.caller.get(KEYS, externalId="cus_4711")).json()["data"] == []


@cases(
    "body",
    [
        {"externalId": ""},
        {"externalId": "a" * 256},
        {"externalId": "a b"},
        {"externalId": 4711},
        {"metadata": {"a": 1}},
        {"metadata": {"a": None}},
        {"metadata": {"": "a"}},
        {"metadata": {"a": "b\n"}},
        {"metadata": ["a"]},
        {"metadata": {"a": "é" * 1030}},
    ],
)
async def test_invalid_ones_are_refused_at_creation_and_change(
    service: Service, body: dict[str, Any]
) -> None:
    org = await service.organization()
    [field] = body
    for answer in (
        await org.owner.post(KEYS, {"orgId": org.id, "name": "k", "scopes": ["a:b"], **body}),
        await org.owner.patch(f"{KEYS}/{org.key.id}", body),
    ):
        assert refusal(answer) == (422, "validation_failed")
        assert answer.json()["errors"][0]["location"].startswith(field)


async def test_pasted_key_is_refused_and_not_repeated(service: Service) -> None:
    org = await service.organization()
    secret = str(org.owner.credential)
    answers = [
        await org.owner.patch(f"{KEYS}/{org.key.id}", body)
        for body in ({"externalId": secret}, {"metadata": {"key": f"it is {secret}"}})
    ]
    answers.append(await org.owner.get(KEYS, externalId=secret))
    for answer in answers:
        assert refusal(answer) == (422, "validation_failed")
        assert secret[13:] not in answer.text


async def test_list_by_external_id_reads_its_index(service: Service) -> None:
    org = await service.organization()
    for number in range(3):
        await made(service, org, externalId=f"cus_{number}")
    database = patient_database(service.conninfo, pool_size=1)
    await database.open()
    async with database.transaction(of_tenant(org.id)) as connection:
        await connection.execute("SET LOCAL enable_seqscan = off")
        await connection.execute("SET LOCAL enable_sort = off")
        wanted = KeyFilter(external_id="cus_1")
        await read_page(connection, org.id, NOW, wanted, Window(20))
        scans = await connection.fetch_value(
            "SELECT pg_stat_get_xact_numscans('api_keys_by_external_id'::regclass)"
        )
    await database.close()
    assert scans == 1

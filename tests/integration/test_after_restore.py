"""A restored database: the exported audit trail revokes and removes again what was revoked since
the backup.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tenantry.db.connection import Connection
from tests.support.app import running_app
from tests.support.backup import run_script
from tests.support.billing import rows
from tests.support.command_runner import invoke_async
from tests.support.commands import Done
from tests.support.imported_keys import IMPORTED_KEY_PATTERN, import_key, imported, old_key
from tests.support.issuer import AUDIENCE, CLIENT_ID
from tests.support.members import (
    accept_path,
    add_member,
    change_role,
    join,
    own_path,
    owned,
    path_of,
    remove_member,
)
from tests.support.outbox import add_notification, delivery_of
from tests.support.postgres import PostgresServer, as_url
from tests.support.service import KEYS, PROJECTS, WHOAMI, Service, refusal, running_service

READS: Final = "projects:read"
EVENTS: Final = "/api/v1/operator/events"
LATER: Final = "2030-01-01T00:00:00Z"


class Restored(NamedTuple):
    """The service on the restored database, and what the command said before it started."""

    service: Service
    done: Done

    def told(self, org_id: str) -> list[tuple[str, str, str]]:
        """The lost changes of a tenant: the action, its target, and what the command did."""
        lines = (line.split("  ") for line in self.done.out.splitlines())
        return [
            (action, target, result)
            for _, action, target, org, result in (line for line in lines if len(line) == 5)
            if org == org_id
        ]

    def results(self, org_id: str) -> list[str]:
        """What the command did with each lost change of a tenant."""
        return [result for _, _, result in self.told(org_id)]


Lost = AsyncGenerator[None, Restored]
"""What is lost, and what becomes of it: a case makes its tenants, and stops for the backup; changes
them, and stops for the loss. It gets the restored service. Where it goes on it stops until a day
has passed, and for a second run of the command, of which it gets the result.
"""


class Loss:
    """A service, a backup of it, and the loss of everything that happened since."""

    def __init__(self, service: Service, postgres: PostgresServer, folder: Path) -> None:
        self.service = service
        self._postgres = postgres
        self._folder = folder
        self._backup = ""
        self.trail = folder / "audit.ndjson"

    async def back_up(self) -> None:
        """Make a backup of what there is now."""
        done = await asyncio.to_thread(
            run_script, "backup.sh", self._folder, conninfo=self.service.conninfo
        )
        assert done.returncode == 0, done.stderr
        self._backup = done.stdout.strip()

    @asynccontextmanager
    async def restored(self, *arguments: str) -> AsyncIterator[Restored]:
        """The service on what the backup holds, after `tenantry admin after-restore` with these
        arguments.
        """
        done = await self._admin(self.service.conninfo, "export-audit")
        assert done.code == 0, done.err
        self.trail.write_text(done.out)
        with self._postgres.database(migrated=False) as conninfo:
            restored = await asyncio.to_thread(
                run_script, "restore.sh", self._backup, conninfo=conninfo
            )
            assert restored.returncode == 0, restored.stderr
            done = await self.after_restore(conninfo, *arguments)
            issuer, clock = self.service.issuer, self.service.clock
            values = {
                "OIDC_ISSUER": issuer.url,
                "OIDC_AUDIENCE": AUDIENCE,
                "OIDC_CLIENT_ID": CLIENT_ID,
                "IMPORTED_KEY_PATTERN": IMPORTED_KEY_PATTERN,
            }
            async with running_app(conninfo, clock=clock, **values) as client:
                yield Restored(Service(client, clock, issuer, conninfo), done)

    async def after_restore(self, conninfo: str, *arguments: str) -> Done:
        """What the command comes to."""
        return await self._admin(conninfo, "after-restore", *arguments)

    async def _admin(self, conninfo: str, *arguments: str) -> Done:
        identity = {"OIDC_ISSUER": self.service.issuer.url, "OIDC_AUDIENCE": AUDIENCE}
        given = self.trail.read_text() if self.trail.exists() else None
        return await invoke_async(
            "admin",
            *arguments,
            folder=self._folder,
            given=given,
            DATABASE_URL=as_url(conninfo),
            **identity,
        )


@pytest.fixture
async def loss(conninfo: str, postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Loss]:
    async with running_service(conninfo) as service:
        yield Loss(service, postgres, tmp_path)


async def keys_revoked_after_the_backup_are_rejected(service: Service) -> Lost:
    org = await service.organization()
    revoked, leaked, rotated, active = [
        await service.key(org.owner, org.id, READS) for _ in range(4)
    ]
    yield
    assert (await org.owner.delete(revoked.path)).status_code == 204
    report = {"secret": leaked.caller.credential}
    assert (await service.anonymous.post(f"{KEYS}/report-leak", report)).status_code == 200
    assert (await org.owner.post(f"{rotated.path}/rotate", {"overlapSeconds": 0})).status_code in (
        200,
        201,
    )
    restored = yield
    for key in (revoked, leaked, rotated):
        assert refusal(await restored.service.caller(key.caller.credential).get(PROJECTS)) == (
            401,
            "api_key_revoked",
        )
    for key in (org.key, active):
        assert (
            await restored.service.caller(key.caller.credential).get(PROJECTS)
        ).status_code == 200
    assert restored.results(org.id).count("redone") == 3


async def imported_keys_that_were_revoked_after_the_backup_stay_revoked(service: Service) -> Lost:
    org = await service.organization()
    keys = [old_key() for _ in range(2)]
    revoked, _ = [
        await import_key(service, org.id, key, externalId=f"old-{number}")
        for number, key in enumerate(keys)
    ]
    yield
    await org.owner.delete(f"{KEYS}/{revoked}")
    restored = yield
    again = [key.member(externalId=f"old-{number}") for number, key in enumerate(keys)]
    assert [each["status"] for each in await imported(restored.service, org.id, *again)] == [
        "exists"
    ] * 2
    answers = [await restored.service.caller(key.secret).get(PROJECTS) for key in keys]
    assert refusal(answers[0]) == (401, "api_key_revoked")
    assert answers[1].status_code == 200


async def keys_with_reduced_scopes_or_expiry_are_reduced_again(service: Service) -> Lost:
    org = await service.organization()
    key = await service.key(org.owner, org.id, READS, "projects:write")
    ended = await service.key(org.owner, org.id, READS)
    yield
    assert (
        await org.owner.call("PATCH", key.path, {"scopes": [READS], "expiresAt": LATER})
    ).status_code == 200
    soon = (
        (service.clock.now.replace(microsecond=0))
        .isoformat()
        .replace("+00:00", "Z")
        .replace("T12", "T18")
    )
    assert (await org.owner.call("PATCH", ended.path, {"expiresAt": soon})).status_code == 200
    restored = yield
    who = (await restored.service.caller(key.caller.credential).get(WHOAMI)).json()
    assert (who["scopes"], who["expiresAt"]) == ([READS], LATER)
    assert refusal(await restored.service.caller(ended.caller.credential).get(PROJECTS)) == (
        401,
        "api_key_revoked",
    )


async def removed_members_and_lowered_roles_are_applied_again(service: Service) -> Lost:
    org = await service.organization()
    gone, less = (
        await add_member(org.owner, "gone", "admin"),
        await add_member(org.owner, "less", "admin"),
    )
    yield
    await remove_member(org.owner, gone)
    await change_role(org.owner, less, "member")
    restored = yield
    owner = restored.service.caller(org.owner.credential)
    assert (await owner.get(path_of(gone))).json()["status"] == "removed"
    assert (await owner.get(path_of(less))).json()["role"] == "member"


async def raised_roles_are_only_listed(service: Service) -> Lost:
    org = await service.organization()
    await add_member(org.owner, "owner", "owner")
    more, up_and_down = await add_member(org.owner, "more"), await add_member(org.owner, "both")
    yield
    await change_role(org.owner, more, "admin")
    await change_role(org.owner, up_and_down, "owner")
    await change_role(org.owner, up_and_down, "admin")
    restored = yield
    owner = restored.service.caller(org.owner.credential)
    assert {
        (await owner.get(path_of(member))).json()["role"] for member in (more, up_and_down)
    } == {"member"}
    told = "manual: the member has the former role member instead of admin"
    assert ("member.updated", more["id"], told) in restored.told(org.id)
    assert [result.partition(":")[0] for result in restored.results(org.id)] == ["manual"] * 3


async def invalid_claim_of_ownership_stays_invalid_after_the_restore(service: Service) -> Lost:
    org = await service.organization()
    admin = service.user("the-admin", org=org.id, role="admin")
    names = ("lowered", "removed", "declined")
    lowered, removed, declined = [await add_member(admin, name, "admin") for name in names]
    yield
    await change_role(admin, lowered, "member")
    await remove_member(admin, removed)
    owners = {name: service.user(name, org=org.id, role="owner") for name in names}
    assert (await owners["declined"].delete(own_path(declined))).status_code == 204
    restored = yield
    for name in names:
        owner = restored.service.caller(owners[name].credential)
        assert (await owner.get(WHOAMI)).json()["accessLevel"] == "OWNER", name
    assert restored.results(org.id).count("redone") == 3


async def confirmed_claim_of_ownership_stays_valid_after_the_restore(service: Service) -> Lost:
    org = await service.organization()
    admin = service.user("the-admin", org=org.id, role="admin")
    lowered, removed = [await add_member(admin, name, "member") for name in ("lesser", "expelled")]
    await remove_member(admin, removed)
    yield
    await change_role(org.owner, lowered, "member")
    await remove_member(org.owner, removed)
    restored = yield
    as_lowered, as_removed = [
        await restored.service.user(name, org=org.id, role="owner").get(WHOAMI)
        for name in ("lesser", "expelled")
    ]
    assert as_lowered.json()["accessLevel"] == "SCOPED"
    assert refusal(as_removed) == (403, "no_organization")


async def transfer_of_a_tenant_is_only_listed(service: Service) -> Lost:
    org, first = await owned(service, "first")
    second = await join(service, org, "second")
    yield
    wishes = {"userId": "second", "ownerEmail": "second@x.example"}
    assert (await org.owner.post(f"{org.path}/transfer", wishes)).status_code == 200
    restored = yield
    owner = restored.service.caller(org.owner.credential)
    roles = [(await owner.get(path_of(member))).json()["role"] for member in (first, second)]
    assert roles == ["owner", "member"]
    assert [result.partition(":")[0] for result in restored.results(org.id)] == ["manual"] * 3


async def readded_members_are_left_to_the_operator(service: Service) -> Lost:
    org = await service.organization()
    member = await add_member(org.owner, "back", "admin")
    yield
    await remove_member(org.owner, member)
    await add_member(org.owner, "back")
    restored = yield
    owner = restored.service.caller(org.owner.credential)
    assert (await owner.get(path_of(member))).json()["status"] == "removed"
    assert "manual: the user was added or accepted, but is removed" in restored.results(org.id)


async def only_the_last_change_of_a_suspension_counts(service: Service) -> Lost:
    histories = {
        words: await service.organization() for words in ((True, False), (True, False, True))
    }
    yield
    for words, org in histories.items():
        for word in words:
            wishes = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": word}
            assert (await service.operator.put(org.path, wishes)).status_code == 200
    restored = yield
    for words, org in histories.items():
        answer = await restored.service.caller(org.owner.credential).get(PROJECTS)
        assert answer.status_code == (403 if words[-1] else 200)
        assert restored.results(org.id).count("redone: only the suspension") == words[-1]


async def resumed_tenants_are_left_to_the_operator(service: Service) -> Lost:
    org = await service.organization()
    wishes = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
    assert (await service.operator.put(org.path, wishes)).status_code == 200
    yield
    assert (await service.operator.put(org.path, {**wishes, "suspended": False})).status_code == 200
    restored = yield
    assert (await restored.service.caller(org.owner.credential).get(PROJECTS)).status_code == 403
    told = "manual: it has its former suspended"
    assert ("tenant.updated", org.id, told) in restored.told(org.id)


async def ended_and_suspended_tenants_are_so_again(service: Service) -> Lost:
    ended, suspended = await service.organization(), await service.organization()
    yield
    assert (await service.operator.delete(ended.path)).status_code in (200, 204)
    wishes = {"name": suspended.id, "ownerEmail": "owner@x.example", "suspended": True}
    wishes["reason"] = "Invoice 2026-114 is unpaid"
    assert (await service.operator.put(suspended.path, wishes)).status_code == 200
    other = {**wishes, "reason": "Fraud"}
    assert (await service.operator.put(suspended.path, other)).status_code == 200
    restored = yield
    assert (await restored.service.caller(ended.owner.credential).get(PROJECTS)).status_code == 401
    answer = await restored.service.caller(suspended.owner.credential).get(PROJECTS)
    assert (answer.status_code, answer.json()["reason"]) == (403, "Fraud")


async def ended_grants_end_again_and_changed_ones_are_listed(service: Service) -> Lost:
    org = await service.organization()
    operator, terms = service.operator, {"plan": "pro", "reason": "a contract"}
    for name in ("ended", "changed", org.id):
        assert (await operator.put(f"{org.path}/grants/{name}", terms)).status_code == 200
    yield
    await operator.delete(f"{org.path}/grants/ended")
    await operator.put(f"{org.path}/grants/changed", {**terms, "plan": "business"})
    await operator.put(f"{org.path}/grants/new", terms)
    restored = yield
    listed = (await restored.service.operator.get(f"{org.path}/grants")).json()["data"]
    assert {grant["name"]: grant["plan"] for grant in listed} == {
        "changed": "pro",
        org.id: "pro",
    }
    told = [(*what, result.partition(":")[0]) for *what, result in restored.told(org.id)]
    assert told == [
        ("grant.ended", "ended", "redone"),
        ("grant.set", "changed", "manual"),
        ("grant.set", "new", "missing"),
    ]


async def objects_created_after_the_backup_are_listed_as_lost(service: Service) -> Lost:
    org = await service.organization()
    yield
    late = await service.key(org.owner, org.id, READS)
    lost = await service.organization()
    restored = yield
    assert (await restored.service.caller(late.caller.credential).get(PROJECTS)).status_code == 401
    missing = "missing: it was created after the backup"
    assert restored.told(org.id) == [("api_key.created", late.id, missing)]
    assert set(restored.results(lost.id)) == {missing}


async def changes_that_cannot_be_applied_are_left_to_the_operator(service: Service) -> Lost:
    org = await service.organization()
    yield
    wishes = {"name": "Another name", "ownerEmail": "owner@x.example"}
    assert (await service.operator.put(org.path, wishes)).status_code == 200
    restored = yield
    told = "manual: it has its former name"
    assert ("tenant.updated", org.id, told) in restored.told(org.id)


async def changes_of_projects_are_only_listed(service: Service) -> Lost:
    org = await service.organization()
    changed, deleted = [
        (await org.owner.post(PROJECTS, {"name": "One"})).json()["id"] for _ in range(2)
    ]
    yield
    await org.owner.patch(f"{PROJECTS}/{changed}", {"name": "Two"})
    await org.owner.delete(f"{PROJECTS}/{deleted}")
    late = (await org.owner.post(PROJECTS, {"name": "Late"})).json()["id"]
    await org.owner.patch(f"{PROJECTS}/{late}", {"name": "Later"})
    await org.owner.delete(f"{PROJECTS}/{late}")
    restored = yield
    assert (await restored.service.caller(org.owner.credential).get(PROJECTS)).status_code == 200
    kept, missing = (
        "manual: the project is as it was at the backup",
        "missing: it was created after the backup",
    )
    assert sorted(restored.told(org.id)) == sorted(
        [
            ("project.updated", changed, kept),
            ("project.deleted", deleted, kept),
            ("project.created", late, missing),
            ("project.updated", late, missing),
            ("project.deleted", late, "already done"),
        ]
    )


async def answers_to_invitations_are_applied_again_or_listed(service: Service) -> Lost:
    org = await service.organization()
    left = await join(service, org, "leaver")
    declined, accepted = (
        await add_member(org.owner, "decliner"),
        await add_member(org.owner, "accepter"),
    )
    yield
    for member in (left, declined):
        user = service.user(member["userId"])
        assert (await user.delete(own_path(member))).status_code == 204
    assert (await service.user("accepter").post(accept_path(accepted))).status_code == 200
    restored = yield
    owner = restored.service.caller(org.owner.credential)
    statuses = [
        (await owner.get(path_of(member))).json()["status"] for member in (left, declined, accepted)
    ]
    assert statuses == ["removed", "removed", "invited"]
    assert "manual: the user was added or accepted, but is invited" in restored.results(org.id)


async def changed_external_ids_and_metadata_are_changed_again(service: Service) -> Lost:
    org = await service.organization()
    key = await service.key(org.owner, org.id, READS, externalId="cus_1", metadata={"a": "b"})
    yield
    await org.owner.call("PATCH", key.path, {"externalId": None, "metadata": {"c": "d"}})
    restored = yield
    who = (await restored.service.caller(key.caller.credential).get(WHOAMI)).json()
    assert (who["externalId"], who["metadata"]) == (None, {"c": "d"})


async def second_run_keeps_members_added_since_the_restore(service: Service) -> Lost:
    org = await service.organization()
    back, gone = await add_member(org.owner, "back"), await add_member(org.owner, "gone", "admin")
    yield
    await remove_member(org.owner, back)
    await change_role(org.owner, gone, "member")
    await remove_member(org.owner, gone)
    restored = yield
    yield
    owner = restored.service.caller(org.owner.credential)
    await add_member(owner, "back")
    again = yield
    statuses = [(await owner.get(path_of(member))).json()["status"] for member in (back, gone)]
    assert statuses == ["invited", "removed"]
    assert "already done: the member was added again since" in again.results(org.id)
    assert [result.partition(":")[0] for result in again.results(org.id)] == ["already done"] * 3


async def second_run_keeps_changes_made_since_the_first(service: Service) -> Lost:
    org = await service.organization()
    revoked, renamed = [await service.key(org.owner, org.id, READS) for _ in range(2)]
    yield
    await org.owner.delete(revoked.path)
    await org.owner.call("PATCH", renamed.path, {"name": "before the loss"})
    restored = yield
    assert restored.results(org.id) == ["redone", "redone"]
    yield
    owner = restored.service.caller(org.owner.credential)
    assert (await owner.call("PATCH", renamed.path, {"name": "after it"})).status_code == 200
    again = yield
    assert (await owner.get(renamed.path)).json()["name"] == "after it"
    assert again.results(org.id) == ["already done", "already done: it was changed since"]


async def dashboard_sessions_are_ended(service: Service) -> Lost:
    session = (
        "INSERT INTO dashboard_sessions (digest, issuer, subject, claims, proved_at, started_at, used_at) "
        "VALUES (sha256('a'), 'https://id.example', 'ada', '{}', now(), now(), now())"
    )
    await rows(service.conninfo, session)
    await service.organization()  # is in the trail
    yield
    restored = yield
    assert await rows(restored.service.conninfo, "SELECT FROM dashboard_sessions") == []
    assert "; 1 session ended" in restored.done.out


CASES: Final = (
    keys_revoked_after_the_backup_are_rejected,
    imported_keys_that_were_revoked_after_the_backup_stay_revoked,
    keys_with_reduced_scopes_or_expiry_are_reduced_again,
    removed_members_and_lowered_roles_are_applied_again,
    raised_roles_are_only_listed,
    invalid_claim_of_ownership_stays_invalid_after_the_restore,
    confirmed_claim_of_ownership_stays_valid_after_the_restore,
    transfer_of_a_tenant_is_only_listed,
    readded_members_are_left_to_the_operator,
    only_the_last_change_of_a_suspension_counts,
    resumed_tenants_are_left_to_the_operator,
    ended_and_suspended_tenants_are_so_again,
    ended_grants_end_again_and_changed_ones_are_listed,
    objects_created_after_the_backup_are_listed_as_lost,
    changes_that_cannot_be_applied_are_left_to_the_operator,
    changes_of_projects_are_only_listed,
    answers_to_invitations_are_applied_again_or_listed,
    changed_external_ids_and_metadata_are_changed_again,
    second_run_keeps_members_added_since_the_restore,
    second_run_keeps_changes_made_since_the_first,
    dashboard_sessions_are_ended,
)


async def test_what_was_lost_is_redone_or_listed(loss: Loss) -> None:
    cases = {case.__name__: case(loss.service) for case in CASES}
    await _proceed(cases)
    await loss.back_up()
    await _proceed(cases)
    async with loss.restored("--audit", "-") as restored:
        assert restored.done.code == 1
        await _proceed(cases, restored)
        restored.service.clock.advance(days=1)
        await _proceed(cases)
        trail = ("--audit", str(loss.trail))
        again = await loss.after_restore(restored.service.conninfo, *trail, *trail)
        await _proceed(cases, restored._replace(done=again))
    assert not cases


async def _proceed(cases: dict[str, Lost], given: Restored | None = None) -> None:
    """Let each case go on to where it stops next; forget those that end."""
    for name, case in list(cases.items()):
        try:
            await (case.asend(given) if given else anext(case))
        except StopAsyncIteration:
            del cases[name]
        except Exception as error:
            error.add_note(f"in the case {name}")
            raise


async def revoked_keys_work_until_the_trail_is_given(service: Service) -> Lost:
    org = await service.organization()
    revoked = await service.key(org.owner, org.id, READS)
    yield
    await org.owner.delete(revoked.path)
    restored = yield
    key = restored.service.caller(revoked.caller.credential)
    assert (await key.get(PROJECTS)).status_code == 200
    assert restored.done.out.startswith(
        "Revocations since the backup are not known: keys revoked since then"
    )
    yield
    assert refusal(await key.get(PROJECTS)) == (401, "api_key_revoked")


async def user_who_accepts_after_the_restore_does_not_keep_a_higher_role(service: Service) -> Lost:
    org = await service.organization()
    member = await add_member(org.owner, "quick", "admin")
    yield
    await change_role(org.owner, member, "member")
    restored = yield
    assert (await restored.service.user("quick", asks_for=org.id).get(WHOAMI)).status_code == 200
    again = yield
    assert again.results(org.id).count("redone") == 1
    owner = again.service.caller(org.owner.credential)
    assert (await owner.get(path_of(member))).json()["role"] == "member"


async def lost_renewal_of_a_grant_that_has_ended_since_is_listed(service: Service) -> Lost:
    org = await service.organization()
    operator, clock = service.operator, service.clock
    soon = (clock.now + timedelta(hours=1)).isoformat()
    terms = {"plan": "pro", "reason": "a contract", "until": soon}
    for name in ("renewed", "expired"):
        assert (await operator.put(f"{org.path}/grants/{name}", terms)).status_code == 200
    yield
    await operator.put(f"{org.path}/grants/renewed", {**terms, "until": LATER})
    sooner = (clock.now + timedelta(minutes=1)).isoformat()
    await operator.put(f"{org.path}/grants/expired", {**terms, "until": sooner})
    yield
    again = yield
    assert (await again.service.operator.get(f"{org.path}/grants")).json()["data"] == []
    assert again.told(org.id) == [
        ("grant.set", "renewed", "manual: the grant does not count, by its former terms"),
        ("grant.set", "expired", "already done"),
    ]


async def withdrawn_and_accepted_invitations_are_withdrawn(service: Service) -> Lost:
    org = await service.organization()
    paths, tokens = {}, {}
    for name in ("kept", "withdrawn", "accepted"):
        body = {"email": f"{name}@x.example", "role": "member"}
        made = (await org.owner.post("/api/v1/invitations", body)).json()
        paths[name] = f"/api/v1/invitations/{made['id']}"
        link = (await org.owner.get(f"{paths[name]}/link")).json()["url"]
        tokens[name] = link.partition("=")[2]
    # for the command, whose clock is the system's
    await rows(service.conninfo, "UPDATE invitations SET expires_at = now() + interval '1 day'")
    yield
    await org.owner.delete(paths["withdrawn"])
    await org.owner.post(f"{paths['kept']}/resend")
    user = service.user("user", email="accepted@x.example", email_verified=True)
    body = {"token": tokens["accepted"]}
    assert (await user.post("/api/v1/invitations/accept", body)).status_code == 200
    yield
    again = yield
    found = await rows(again.service.conninfo, "SELECT email, closed_as FROM invitations")
    assert {row["email"]: row["closed_as"] for row in found} == {
        "kept@x.example": None,
        "withdrawn@x.example": "withdrawn",
        "accepted@x.example": "withdrawn",
    }
    told = [
        (action, result)
        for action, _, result in again.told(org.id)
        if action.startswith("invitation.")
    ]
    assert told == [
        ("invitation.withdrawn", "redone"),
        ("invitation.resent", "already done"),
        ("invitation.accepted", "redone: withdrawn, it was accepted"),
    ]


async def grant_that_is_called_like_its_tenant_hides_no_suspension(service: Service) -> Lost:
    org = await service.organization()
    yield
    suspended = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
    await service.operator.put(org.path, suspended)
    restored = yield
    terms = {"plan": "pro", "reason": "a contract"}
    await restored.service.operator.put(f"{org.path}/grants/{org.id}", terms)
    yield
    owner = restored.service.caller(org.owner.credential)
    assert refusal(await owner.get(WHOAMI)) == (403, "org_suspended")


async def export_is_no_change_to_redo_and_supersedes_none(service: Service) -> Lost:
    org = await service.organization()
    yield
    wishes = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
    await service.operator.put(org.path, wishes)
    await service.operator.get(f"{org.path}/export")
    restored = yield
    # later than the lost suspension
    assert (await restored.service.operator.get(f"{org.path}/export")).status_code == 200
    again = yield
    owner = restored.service.caller(org.owner.credential)
    assert (await owner.get(PROJECTS)).status_code == 403
    told = "already done: it changed nothing here"
    assert ("tenant.exported", org.id, told) in again.told(org.id)


async def mails_queued_at_the_backup_are_held_back(service: Service) -> Lost:
    async with await Connection.connect(service.conninfo) as connection:
        queued = await add_notification(connection)
    yield
    restored = yield
    conninfo = restored.service.conninfo
    assert (await delivery_of(conninfo, queued))[0] == "queued"
    again = yield
    assert again.done.out.endswith("; 4 mails held back\n")  # three are invitations
    status, why = await delivery_of(conninfo, queued)
    assert (status, why) == ("failed", "held back by the operator after a restore")


CASES_OF_A_LATER_TRAIL: Final = (
    revoked_keys_work_until_the_trail_is_given,
    user_who_accepts_after_the_restore_does_not_keep_a_higher_role,
    lost_renewal_of_a_grant_that_has_ended_since_is_listed,
    withdrawn_and_accepted_invitations_are_withdrawn,
    grant_that_is_called_like_its_tenant_hides_no_suspension,
    export_is_no_change_to_redo_and_supersedes_none,
    mails_queued_at_the_backup_are_held_back,
)
"""The restored service runs without the trail; two hours later the command gets it."""


async def test_what_was_lost_is_redone_by_a_trail_that_is_given_later(
    conninfo: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    mail = {"SMTP_URL": "smtp://127.0.0.1:9", "MAIL_FROM": "mail@acme.example"}
    async with running_service(conninfo, INVITATIONS="true", **mail) as service:
        loss = Loss(service, postgres, tmp_path)
        cases = {case.__name__: case(service) for case in CASES_OF_A_LATER_TRAIL}
        await _proceed(cases)
        await loss.back_up()
        await _proceed(cases)
        service.clock.advance(hours=2)
        async with loss.restored("--no-audit") as restored:
            await _proceed(cases, restored)
            restored.service.clock.advance(days=1)
            done = await loss.after_restore(
                restored.service.conninfo, "--audit", str(loss.trail), "--hold-mail"
            )
            await _proceed(cases, restored._replace(done=done))
        assert not cases


async def test_a_dry_run_checks_the_keys_and_writes_nothing(loss: Loss) -> None:
    org = await loss.service.organization()
    there, revoked = [await loss.service.key(org.owner, org.id, READS) for _ in range(2)]
    await loss.back_up()
    late = await loss.service.key(org.owner, org.id, READS)
    for key in (late, there, revoked):
        assert (await org.owner.delete(key.path)).status_code == 204
    async with loss.restored("--no-audit") as (service, _):
        assert (await service.caller(org.owner.credential).delete(revoked.path)).status_code == 204
        done = await loss.after_restore(service.conninfo, "--audit", str(loss.trail), "--dry-run")
        assert (await service.caller(there.caller.credential).get(PROJECTS)).status_code == 200
    told = {
        line.split("  ", 2)[2] for line in done.out.splitlines() if "  api_key.revoked  " in line
    }
    assert told == {
        f"{late.id}  {org.id}  missing: it was created after the backup",
        f"{there.id}  {org.id}  redone",
        f"{revoked.id}  {org.id}  already done",
    }
    assert done.out.splitlines()[-1].startswith(
        "4 changes lost: 1 redone, 1 already done, 2 missing, 0 manual; "
    )
    assert done.out.endswith("; nothing written\n")


async def test_the_trail_is_exported_from_a_given_time(loss: Loss) -> None:
    org = await loss.service.organization()
    loss.service.clock.advance(hours=1)
    since = loss.service.clock.now.isoformat()
    late = await loss.service.key(org.owner, org.id, READS)
    done = await loss._admin(loss.service.conninfo, "export-audit", "--since", since)
    assert [json.loads(line)["targetId"] for line in done.out.splitlines()] == [late.id]


async def test_an_empty_trail_is_rejected(loss: Loss) -> None:
    loss.trail.write_text("")
    done = await loss.after_restore(loss.service.conninfo, "--audit", "-")
    assert (done.code, done.out) == (2, "")
    assert "The exported audit trail is empty" in done.err


async def test_restore_rejects_a_database_with_data(loss: Loss) -> None:
    await loss.back_up()
    again = await asyncio.to_thread(
        run_script, "restore.sh", loss._backup, conninfo=loss.service.conninfo
    )
    assert again.returncode == 1
    assert again.stderr.strip().endswith("restore into an empty database.")


@pytest.mark.parametrize(
    "arguments", [(), ("--no-audit", "--audit", "audit.ndjson"), ("--audit", "audit.ndjson")]
)
async def test_wrong_use_exits_with_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "audit.ndjson").write_text('{"id": 1}\n')
    done = await invoke_async(
        "admin",
        "after-restore",
        *arguments,
        folder=tmp_path,
        DATABASE_URL="postgresql://127.0.0.1:1/a",
    )
    assert (done.code, done.out) == (2, "")


@pytest.mark.parametrize(("dry", "begins"), [([], True), (["--dry-run"], False)])
async def test_events_get_versions_above_those_of_lost_ones(
    loss: Loss, dry: list[str], *, begins: bool
) -> None:
    service = loss.service
    org = await service.organization()
    [lost, *_] = (await service.operator.get(EVENTS)).json()["data"]
    await rows(service.conninfo, "DELETE FROM outbound_events")
    await rows(service.conninfo, "SELECT setval('outbound_versions', 1)")
    done = await loss.after_restore(service.conninfo, "--no-audit", *dry)
    assert done.code == 0, done.err
    assert (await org.owner.patch(org.path, {"name": "Renamed"})).status_code == 200
    [renamed] = (await service.operator.get(EVENTS)).json()["data"]
    assert (renamed["version"] > lost["version"]) is begins

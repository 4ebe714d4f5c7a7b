"""A restored database: the exported audit trail revokes and removes again what was revoked since
the backup.
"""

import asyncio
import json
from collections.abc import AsyncIterator
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
            done = await self.after_restore(conninfo, *(arguments or ("--audit", str(self.trail))))
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


async def test_keys_revoked_after_the_backup_are_rejected(loss: Loss) -> None:
    org = await loss.service.organization()
    revoked, leaked, rotated, active = [
        await loss.service.key(org.owner, org.id, READS) for _ in range(4)
    ]
    await loss.back_up()
    assert (await org.owner.delete(revoked.path)).status_code == 204
    report = {"secret": leaked.caller.credential}
    assert (await loss.service.anonymous.post(f"{KEYS}/report-leak", report)).status_code == 200
    assert (await org.owner.post(f"{rotated.path}/rotate", {"overlapSeconds": 0})).status_code in (
        200,
        201,
    )
    async with loss.restored() as (service, done):
        assert done.code == 0, done.err
        for key in (revoked, leaked, rotated):
            assert refusal(await service.caller(key.caller.credential).get(PROJECTS)) == (
                401,
                "api_key_revoked",
            )
        for key in (org.key, active):
            assert (await service.caller(key.caller.credential).get(PROJECTS)).status_code == 200
    assert done.out.count("  redone\n") == 3


async def test_imported_keys_that_were_revoked_after_the_backup_stay_revoked(loss: Loss) -> None:
    org = await loss.service.organization()
    keys = [old_key() for _ in range(2)]
    revoked, _ = [
        await import_key(loss.service, org.id, key, externalId=f"old-{number}")
        for number, key in enumerate(keys)
    ]
    await loss.back_up()
    await org.owner.delete(f"{KEYS}/{revoked}")
    async with loss.restored() as (service, done):
        assert done.code == 0, done.err
        again = [key.member(externalId=f"old-{number}") for number, key in enumerate(keys)]
        assert [each["status"] for each in await imported(service, org.id, *again)] == [
            "exists"
        ] * 2
        answers = [await service.caller(key.secret).get(PROJECTS) for key in keys]
        assert refusal(answers[0]) == (401, "api_key_revoked")
        assert answers[1].status_code == 200


async def test_without_the_trail_revoked_keys_work_and_the_command_warns(loss: Loss) -> None:
    org = await loss.service.organization()
    revoked = await loss.service.key(org.owner, org.id, READS)
    await loss.back_up()
    await org.owner.delete(revoked.path)
    async with loss.restored("--no-audit") as (service, done):
        assert (await service.caller(revoked.caller.credential).get(PROJECTS)).status_code == 200
        assert done.out.startswith(
            "Revocations since the backup are not known: keys revoked since then"
        )


async def test_keys_with_reduced_scopes_or_expiry_are_reduced_again(loss: Loss) -> None:
    org = await loss.service.organization()
    key = await loss.service.key(org.owner, org.id, READS, "projects:write")
    ended = await loss.service.key(org.owner, org.id, READS)
    await loss.back_up()
    assert (
        await org.owner.call("PATCH", key.path, {"scopes": [READS], "expiresAt": LATER})
    ).status_code == 200
    soon = (
        (loss.service.clock.now.replace(microsecond=0))
        .isoformat()
        .replace("+00:00", "Z")
        .replace("T12", "T18")
    )
    assert (await org.owner.call("PATCH", ended.path, {"expiresAt": soon})).status_code == 200
    async with loss.restored() as (service, _):
        who = (await service.caller(key.caller.credential).get(WHOAMI)).json()
        assert (who["scopes"], who["expiresAt"]) == ([READS], LATER)
        assert refusal(await service.caller(ended.caller.credential).get(PROJECTS)) == (
            401,
            "api_key_revoked",
        )


async def test_removed_members_and_lowered_roles_are_applied_again(loss: Loss) -> None:
    org = await loss.service.organization()
    gone, less = (
        await add_member(org.owner, "gone", "admin"),
        await add_member(org.owner, "less", "admin"),
    )
    await loss.back_up()
    await remove_member(org.owner, gone)
    await change_role(org.owner, less, "member")
    async with loss.restored() as (service, _):
        owner = service.caller(org.owner.credential)
        assert (await owner.get(path_of(gone))).json()["status"] == "removed"
        assert (await owner.get(path_of(less))).json()["role"] == "member"


async def test_raised_roles_are_only_listed(loss: Loss) -> None:
    org = await loss.service.organization()
    await add_member(org.owner, "owner", "owner")
    more, up_and_down = await add_member(org.owner, "more"), await add_member(org.owner, "both")
    await loss.back_up()
    await change_role(org.owner, more, "admin")
    await change_role(org.owner, up_and_down, "owner")
    await change_role(org.owner, up_and_down, "admin")
    async with loss.restored() as (service, done):
        owner = service.caller(org.owner.credential)
        assert {
            (await owner.get(path_of(member))).json()["role"] for member in (more, up_and_down)
        } == {"member"}
    assert (
        f"member.updated  {more['id']}  {org.id}  manual: the member has the former role member"
        in done.out
    )
    assert done.out.splitlines()[-1].startswith(
        "3 changes lost: 0 redone, 0 already done, 0 missing, 3 manual; "
    )


async def test_invalid_claim_of_ownership_stays_invalid_after_the_restore(loss: Loss) -> None:
    org = await loss.service.organization()
    admin = loss.service.user("the-admin", org=org.id, role="admin")
    names = ("lowered", "removed", "declined")
    lowered, removed, declined = [await add_member(admin, name, "admin") for name in names]
    await loss.back_up()
    await change_role(admin, lowered, "member")
    await remove_member(admin, removed)
    owners = {name: loss.service.user(name, org=org.id, role="owner") for name in names}
    assert (await owners["declined"].delete(own_path(declined))).status_code == 204
    async with loss.restored() as (service, done):
        for name in names:
            owner = service.caller(owners[name].credential)
            assert (await owner.get(WHOAMI)).json()["accessLevel"] == "OWNER", name
    assert done.out.count("  redone\n") == 3


async def test_confirmed_claim_of_ownership_stays_valid_after_the_restore(loss: Loss) -> None:
    org = await loss.service.organization()
    admin = loss.service.user("the-admin", org=org.id, role="admin")
    lowered, removed = [await add_member(admin, name, "member") for name in ("lowered", "removed")]
    await remove_member(admin, removed)
    await loss.back_up()
    await change_role(org.owner, lowered, "member")
    await remove_member(org.owner, removed)
    async with loss.restored() as (service, _):
        as_lowered, as_removed = [
            await service.user(name, org=org.id, role="owner").get(WHOAMI)
            for name in ("lowered", "removed")
        ]
    assert as_lowered.json()["accessLevel"] == "SCOPED"
    assert refusal(as_removed) == (403, "no_organization")


async def test_user_who_accepts_after_the_restore_does_not_keep_a_higher_role(loss: Loss) -> None:
    org = await loss.service.organization()
    member = await add_member(org.owner, "quick", "admin")
    await loss.back_up()
    await change_role(org.owner, member, "member")
    async with loss.restored("--hold-mail") as (service, _):
        service.clock.advance(days=1)
        assert (await service.user("quick", asks_for=org.id).get(WHOAMI)).status_code == 200
        done = await loss.after_restore(service.conninfo, "--audit", str(loss.trail))
        assert done.out.count("  redone\n") == 1
        assert (await service.caller(org.owner.credential).get(path_of(member))).json()[
            "role"
        ] == "member"


async def test_transfer_of_a_tenant_is_only_listed(loss: Loss) -> None:
    org, first = await owned(loss.service, "first")
    second = await join(loss.service, org, "second")
    await loss.back_up()
    wishes = {"userId": "second", "ownerEmail": "second@x.example"}
    assert (await org.owner.post(f"{org.path}/transfer", wishes)).status_code == 200
    async with loss.restored() as (service, done):
        owner = service.caller(org.owner.credential)
        roles = [(await owner.get(path_of(member))).json()["role"] for member in (first, second)]
        assert roles == ["owner", "member"]
    assert done.out.splitlines()[-1].startswith(
        "3 changes lost: 0 redone, 0 already done, 0 missing, 3 manual; "
    )


async def test_second_run_keeps_members_added_since_the_restore(loss: Loss) -> None:
    org = await loss.service.organization()
    back, gone = await add_member(org.owner, "back"), await add_member(org.owner, "gone", "admin")
    await loss.back_up()
    await remove_member(org.owner, back)
    await change_role(org.owner, gone, "member")
    await remove_member(org.owner, gone)
    async with loss.restored() as (service, _):
        service.clock.advance(days=1)
        owner = service.caller(org.owner.credential)
        await add_member(owner, "back")
        again = await loss.after_restore(service.conninfo, "--audit", str(loss.trail))
        statuses = [(await owner.get(path_of(member))).json()["status"] for member in (back, gone)]
        assert statuses == ["invited", "removed"]
    assert "already done: the member was added again since\n" in again.out
    assert again.out.splitlines()[-1].startswith("3 changes lost: 0 redone, 3 already done, ")


async def test_readded_members_are_left_to_the_operator(loss: Loss) -> None:
    org = await loss.service.organization()
    member = await add_member(org.owner, "back", "admin")
    await loss.back_up()
    await remove_member(org.owner, member)
    await add_member(org.owner, "back")
    async with loss.restored() as (service, done):
        owner = service.caller(org.owner.credential)
        assert (await owner.get(path_of(member))).json()["status"] == "removed"
    assert "  manual: the user was added or accepted, but is removed\n" in done.out


@pytest.mark.parametrize(
    ("words", "is_suspended"), [((True, False), False), ((True, False, True), True)]
)
async def test_only_the_last_change_of_a_suspension_counts(
    loss: Loss, words: tuple[bool, ...], is_suspended: bool
) -> None:
    org = await loss.service.organization()
    await loss.back_up()
    for word in words:
        wishes = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": word}
        assert (await loss.service.operator.put(org.path, wishes)).status_code == 200
    async with loss.restored() as (service, done):
        status = (await service.caller(org.owner.credential).get(PROJECTS)).status_code
        assert status == (403 if is_suspended else 200)
    assert done.out.count("  redone: only the suspension\n") == is_suspended


async def test_resumed_tenants_are_left_to_the_operator(loss: Loss) -> None:
    org = await loss.service.organization()
    wishes = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
    assert (await loss.service.operator.put(org.path, wishes)).status_code == 200
    await loss.back_up()
    assert (
        await loss.service.operator.put(org.path, {**wishes, "suspended": False})
    ).status_code == 200
    async with loss.restored() as (service, done):
        assert (await service.caller(org.owner.credential).get(PROJECTS)).status_code == 403
    assert f"tenant.updated  {org.id}  {org.id}  manual: it has its former suspended\n" in done.out


async def test_ended_and_suspended_tenants_are_so_again(loss: Loss) -> None:
    ended, suspended = await loss.service.organization(), await loss.service.organization()
    await loss.back_up()
    assert (await loss.service.operator.delete(ended.path)).status_code in (200, 204)
    wishes = {"name": suspended.id, "ownerEmail": "owner@x.example", "suspended": True}
    assert (await loss.service.operator.put(suspended.path, wishes)).status_code == 200
    async with loss.restored() as (service, _):
        assert (await service.caller(ended.owner.credential).get(PROJECTS)).status_code == 401
        assert (await service.caller(suspended.owner.credential).get(PROJECTS)).status_code == 403


async def test_ended_grants_end_again_and_changed_ones_are_listed(loss: Loss) -> None:
    org = await loss.service.organization()
    operator, terms = loss.service.operator, {"plan": "pro", "reason": "a contract"}
    for name in ("ended", "changed", org.id):
        assert (await operator.put(f"{org.path}/grants/{name}", terms)).status_code == 200
    await loss.back_up()
    await operator.delete(f"{org.path}/grants/ended")
    await operator.put(f"{org.path}/grants/changed", {**terms, "plan": "business"})
    await operator.put(f"{org.path}/grants/new", terms)
    async with loss.restored() as (service, done):
        listed = (await service.operator.get(f"{org.path}/grants")).json()["data"]
        assert {grant["name"]: grant["plan"] for grant in listed} == {
            "changed": "pro",
            org.id: "pro",
        }
        lines = [line.split("  ") for line in done.out.splitlines() if "grant." in line]
        assert [(line[1], line[2], line[4].partition(":")[0]) for line in lines] == [
            ("grant.ended", "ended", "redone"),
            ("grant.set", "changed", "manual"),
            ("grant.set", "new", "missing"),
        ]


async def test_a_lost_renewal_of_a_grant_that_has_ended_since_is_listed(loss: Loss) -> None:
    org = await loss.service.organization()
    operator, clock = loss.service.operator, loss.service.clock
    soon = (clock.now + timedelta(hours=1)).isoformat()
    terms = {"plan": "pro", "reason": "a contract", "until": soon}
    for name in ("renewed", "expired"):
        assert (await operator.put(f"{org.path}/grants/{name}", terms)).status_code == 200
    await loss.back_up()
    await operator.put(f"{org.path}/grants/renewed", {**terms, "until": LATER})
    sooner = (clock.now + timedelta(minutes=1)).isoformat()
    await operator.put(f"{org.path}/grants/expired", {**terms, "until": sooner})
    clock.advance(hours=2)
    async with loss.restored() as (service, done):
        assert (await service.operator.get(f"{org.path}/grants")).json()["data"] == []
        lines = [line.split("  ") for line in done.out.splitlines() if "grant." in line]
        assert [(line[2], line[4]) for line in lines] == [
            ("renewed", "manual: the grant does not count, by its former terms"),
            ("expired", "already done"),
        ]


async def test_withdrawn_and_accepted_invitations_are_withdrawn(
    conninfo: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    mail = {"SMTP_URL": "smtp://127.0.0.1:9", "MAIL_FROM": "mail@acme.example"}
    async with running_service(conninfo, INVITATIONS="true", **mail) as service:
        loss = Loss(service, postgres, tmp_path)
        org = await service.organization()
        paths, tokens = {}, {}
        for name in ("kept", "withdrawn", "accepted"):
            body = {"email": f"{name}@x.example", "role": "member"}
            made = (await org.owner.post("/api/v1/invitations", body)).json()
            paths[name] = f"/api/v1/invitations/{made['id']}"
            link = (await org.owner.get(f"{paths[name]}/link")).json()["url"]
            tokens[name] = link.partition("=")[2]
        # for the command, whose clock is the system's
        await rows(conninfo, "UPDATE invitations SET expires_at = now() + interval '1 day'")
        await loss.back_up()
        await org.owner.delete(paths["withdrawn"])
        await org.owner.post(f"{paths['kept']}/resend")
        user = service.user("user", email="accepted@x.example", email_verified=True)
        body = {"token": tokens["accepted"]}
        assert (await user.post("/api/v1/invitations/accept", body)).status_code == 200
        async with loss.restored() as (restored, done):
            found = await rows(restored.conninfo, "SELECT email, closed_as FROM invitations")
            lines = [line.split("  ") for line in done.out.splitlines() if "invitation." in line]
    assert {row["email"]: row["closed_as"] for row in found} == {
        "kept@x.example": None,
        "withdrawn@x.example": "withdrawn",
        "accepted@x.example": "withdrawn",
    }
    assert [(line[1], line[4]) for line in lines] == [
        ("invitation.withdrawn", "redone"),
        ("invitation.resent", "already done"),
        ("invitation.accepted", "redone: withdrawn, it was accepted"),
    ]


async def test_grant_that_is_called_like_its_tenant_hides_no_suspension(loss: Loss) -> None:
    org = await loss.service.organization()
    await loss.back_up()
    suspended = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
    await loss.service.operator.put(org.path, suspended)
    async with loss.restored("--no-audit") as (service, _):
        terms = {"plan": "pro", "reason": "a contract"}
        await service.operator.put(f"{org.path}/grants/{org.id}", terms)
        await loss.after_restore(service.conninfo, "--audit", str(loss.trail))
        assert refusal(await service.caller(org.owner.credential).get(WHOAMI)) == (
            403,
            "org_suspended",
        )


async def test_export_is_no_change_to_redo_and_supersedes_none(loss: Loss) -> None:
    org = await loss.service.organization()
    await loss.back_up()
    wishes = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
    await loss.service.operator.put(org.path, wishes)
    await loss.service.operator.get(f"{org.path}/export")
    async with loss.restored("--no-audit") as (service, _):
        # later than the lost suspension
        assert (await service.operator.get(f"{org.path}/export")).status_code == 200
        done = await loss.after_restore(service.conninfo, "--audit", str(loss.trail))
        assert (await service.caller(org.owner.credential).get(PROJECTS)).status_code == 403
    assert (
        f"tenant.exported  {org.id}  {org.id}  already done: it changed nothing here\n" in done.out
    )


async def test_objects_created_after_the_backup_are_listed_as_lost(loss: Loss) -> None:
    org = await loss.service.organization()
    await loss.back_up()
    late = await loss.service.key(org.owner, org.id, READS)
    await loss.service.organization()
    async with loss.restored() as (service, done):
        assert (await service.caller(late.caller.credential).get(PROJECTS)).status_code == 401
    assert (
        f"api_key.created  {late.id}  {org.id}  missing: it was created after the backup\n"
        in done.out
    )
    assert done.out.splitlines()[-1].startswith(
        "3 changes lost: 0 redone, 0 already done, 3 missing, 0 manual; "
    )


async def test_changes_that_cannot_be_applied_are_left_to_the_operator(loss: Loss) -> None:
    org = await loss.service.organization()
    await loss.back_up()
    wishes = {"name": "Another name", "ownerEmail": "owner@x.example"}
    assert (await loss.service.operator.put(org.path, wishes)).status_code == 200
    async with loss.restored() as (_, done):
        assert done.code == 1
        assert f"tenant.updated  {org.id}  {org.id}  manual: it has its former name\n" in done.out


async def test_changes_of_projects_are_only_listed(loss: Loss) -> None:
    org = await loss.service.organization()
    changed, deleted = [
        (await org.owner.post(PROJECTS, {"name": "One"})).json()["id"] for _ in range(2)
    ]
    await loss.back_up()
    await org.owner.patch(f"{PROJECTS}/{changed}", {"name": "Two"})
    await org.owner.delete(f"{PROJECTS}/{deleted}")
    late = (await org.owner.post(PROJECTS, {"name": "Late"})).json()["id"]
    await org.owner.patch(f"{PROJECTS}/{late}", {"name": "Later"})
    await org.owner.delete(f"{PROJECTS}/{late}")
    async with loss.restored() as (service, done):
        assert (await service.caller(org.owner.credential).get(PROJECTS)).status_code == 200
    for told in (
        f"project.updated  {changed}  {org.id}  manual: the project is as it was at the backup",
        f"project.deleted  {deleted}  {org.id}  manual: the project is as it was at the backup",
        f"project.created  {late}  {org.id}  missing: it was created after the backup",
        f"project.updated  {late}  {org.id}  missing: it was created after the backup",
        f"project.deleted  {late}  {org.id}  already done",
    ):
        assert told in done.out


async def test_second_run_keeps_changes_made_since_the_first(loss: Loss) -> None:
    org = await loss.service.organization()
    revoked, renamed = [await loss.service.key(org.owner, org.id, READS) for _ in range(2)]
    await loss.back_up()
    await org.owner.delete(revoked.path)
    await org.owner.call("PATCH", renamed.path, {"name": "before the loss"})
    async with loss.restored() as (service, first):
        service.clock.advance(days=1)
        owner = service.caller(org.owner.credential)
        assert (await owner.call("PATCH", renamed.path, {"name": "after it"})).status_code == 200
        again = await loss.after_restore(
            service.conninfo, "--audit", str(loss.trail), "--audit", str(loss.trail)
        )
        assert (await owner.get(renamed.path)).json()["name"] == "after it"
    assert (first.out.count("  redone\n"), again.out.count("  already done")) == (2, 2)


async def test_dry_run_writes_nothing(loss: Loss) -> None:
    org = await loss.service.organization()
    revoked = await loss.service.key(org.owner, org.id, READS)
    await loss.back_up()
    await org.owner.delete(revoked.path)
    arguments = ("--audit", str(loss.trail), "--hold-mail", "--dry-run")
    async with loss.restored(*arguments) as (service, done):
        assert (await service.caller(revoked.caller.credential).get(PROJECTS)).status_code == 200
    assert done.out.splitlines()[-1].endswith("; nothing written")


async def test_a_dry_run_checks_the_keys(loss: Loss) -> None:
    org = await loss.service.organization()
    there, revoked = [await loss.service.key(org.owner, org.id, READS) for _ in range(2)]
    await loss.back_up()
    late = await loss.service.key(org.owner, org.id, READS)
    for key in (late, there, revoked):
        assert (await org.owner.delete(key.path)).status_code == 204
    async with loss.restored("--no-audit") as (service, _):
        assert (await service.caller(org.owner.credential).delete(revoked.path)).status_code == 204
        done = await loss.after_restore(service.conninfo, "--audit", str(loss.trail), "--dry-run")
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


async def test_mails_queued_at_the_backup_can_be_held_back(loss: Loss) -> None:
    async with await Connection.connect(loss.service.conninfo) as connection:
        queued = await add_notification(connection)
    await loss.service.organization()  # is in the trail
    await loss.back_up()
    async with loss.restored() as (service, _):
        assert (await delivery_of(service.conninfo, queued))[0] == "queued"
        done = await loss.after_restore(service.conninfo, "--audit", str(loss.trail), "--hold-mail")
        assert done.out.endswith("; 1 mail held back\n")
        status, _, why = await delivery_of(service.conninfo, queued)
        assert (status, why) == ("failed", "held back by the operator after a restore")


async def test_dashboard_sessions_are_ended(loss: Loss) -> None:
    session = (
        "INSERT INTO dashboard_sessions (digest, issuer, subject, claims, proved_at, started_at, used_at) "
        "VALUES (sha256('a'), 'https://id.example', 'ada', '{}', now(), now(), now())"
    )
    await rows(loss.service.conninfo, session)
    await loss.service.organization()  # is in the trail
    await loss.back_up()
    async with loss.restored() as (service, done):
        assert await rows(service.conninfo, "SELECT FROM dashboard_sessions") == []
    assert "; 1 session ended" in done.out


async def test_the_trail_is_exported_from_a_given_time(loss: Loss) -> None:
    org = await loss.service.organization()
    loss.service.clock.advance(hours=1)
    since = loss.service.clock.now.isoformat()
    late = await loss.service.key(org.owner, org.id, READS)
    done = await loss._admin(loss.service.conninfo, "export-audit", "--since", since)
    assert [json.loads(line)["targetId"] for line in done.out.splitlines()] == [late.id]


async def test_the_trail_is_read_from_the_standard_input(loss: Loss) -> None:
    org = await loss.service.organization()
    key = await loss.service.key(org.owner, org.id, READS)
    await loss.back_up()
    await org.owner.delete(key.path)
    async with loss.restored("--audit", "-") as (service, done):
        assert " 1 redone," in done.out
        assert refusal(await service.caller(key.caller.credential).get(PROJECTS)) == (
            401,
            "api_key_revoked",
        )


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


async def test_answers_to_invitations_are_applied_again_or_listed(loss: Loss) -> None:
    org = await loss.service.organization()
    left = await join(loss.service, org, "leaver")
    declined, accepted = (
        await add_member(org.owner, "decliner"),
        await add_member(org.owner, "accepter"),
    )
    await loss.back_up()
    for member in (left, declined):
        user = loss.service.user(member["userId"])
        assert (await user.delete(own_path(member))).status_code == 204
    assert (await loss.service.user("accepter").post(accept_path(accepted))).status_code == 200
    async with loss.restored() as (service, done):
        owner = service.caller(org.owner.credential)
        statuses = [
            (await owner.get(path_of(member))).json()["status"]
            for member in (left, declined, accepted)
        ]
        assert statuses == ["removed", "removed", "invited"]
    assert "  manual: the user was added or accepted, but is invited\n" in done.out


async def test_changed_external_ids_and_metadata_are_changed_again(loss: Loss) -> None:
    org = await loss.service.organization()
    key = await loss.service.key(org.owner, org.id, READS, externalId="cus_1", metadata={"a": "b"})
    await loss.back_up()
    await org.owner.call("PATCH", key.path, {"externalId": None, "metadata": {"c": "d"}})
    async with loss.restored() as (service, _):
        who = (await service.caller(key.caller.credential).get(WHOAMI)).json()
        assert (who["externalId"], who["metadata"]) == (None, {"c": "d"})


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

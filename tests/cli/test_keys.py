"""``tenantry keys``: create, list, show, rotate and revoke."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenantry.domain.api_keys import KeyFormat
from tenantry.domain.permissions import Mode
from tests.cli.command_support import SECRET, Workspace, in_shell
from tests.support.imported_keys import import_key, old_key


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_only_the_secret_is_on_stdout_and_it_works(workspace: Workspace) -> None:
    made = await workspace.run(
        "keys", "create", "--name", "CI", "--scope", "projects:read", "--expires-in", "90d"
    )
    assert made.code == 0
    assert SECRET.fullmatch(made.out.rstrip("\n"))
    assert made.out.count("\n") == 1
    assert "projects:read, live, until" in made.err
    assert not SECRET.search(made.err)
    listed = await workspace.run("projects", "list", TENANTRY_API_KEY=made.out.strip())
    assert (listed.code, listed.err) == (0, "There are no projects.\n")


async def test_secret_is_in_no_other_output(workspace: Workspace) -> None:
    key_id, secret = await workspace.key("projects:read")
    for arguments in (
        ["keys", "list"],
        ["keys", "list", "--json"],
        ["keys", "show", key_id],
        ["whoami", "--json"],
    ):
        done = await workspace.run(*arguments)
        assert done.code == 0
        assert not SECRET.search(done.out + done.err)
    assert secret[-4:] in (await workspace.run("keys", "show", key_id)).out


async def test_expires_in_counts_from_now(workspace: Workspace) -> None:
    before = datetime.now(UTC)
    made = json.loads(
        await workspace.done(
            "keys", "create", "--name", "a", "--owner", "--expires-in", "1w12h", "--json"
        )
    )
    length = timedelta(weeks=1, hours=12)
    assert (
        before + length <= datetime.fromisoformat(made["expiresAt"]) <= datetime.now(UTC) + length
    )
    assert (made["accessLevel"], made["name"]) == ("OWNER", "a")
    assert SECRET.fullmatch(made["secret"])


async def test_expires_at_is_a_time(workspace: Workspace) -> None:
    arguments = (
        "--name",
        "a",
        "--scope",
        "a:b",
        "--expires-at",
        "2099-01-31",
        "--mode",
        "test",
        "--json",
    )
    made = json.loads(await workspace.done("keys", "create", *arguments))
    assert (made["expiresAt"], made["mode"]) == ("2099-01-31T00:00:00Z", "test")


async def test_invalid_requests_are_usage_errors(workspace: Workspace) -> None:
    for arguments in (
        ["--name", "a"],
        ["--name", "a", "--scope", "a:b", "--owner"],
        ["--scope", "a:b"],
        ["--name", "a", "--scope", "a:b", "--expires-in", "1y"],
        ["--name", "a", "--scope", "a:b", "--expires-in", "0d"],
        ["--name", "a", "--scope", "a:b", "--expires-in", "1d", "--expires-at", "2099-01-01"],
        ["--name", "", "--scope", "a:b"],
        ["--name", "a", "--scope", "nonsense"],
    ):
        done = await workspace.run("keys", "create", *arguments)
        assert (done.code, done.out) == (2, ""), arguments


async def test_invalid_scope_is_named(workspace: Workspace) -> None:
    done = await workspace.run("keys", "create", "--name", "a", "--scope", "nonsense")
    assert "  scopes" in done.err


async def test_key_is_never_an_argument(workspace: Workspace) -> None:
    done = await workspace.run("keys", "list", "--api-key", "svc_live_x")
    assert done.code == 2
    assert "No such option" in done.err


async def test_list_shows_status_and_respects_filter_and_limit(workspace: Workspace) -> None:
    gone, _ = await workspace.key("a:b", name="gone")
    await workspace.done("keys", "revoke", gone, "--yes")
    for number in range(3):
        await workspace.key("a:b", name=f"k{number}")
    shown = (await workspace.done("keys", "list")).splitlines()
    assert shown[0].split()[:6] == ["ID", "NAME", "STATUS", "EXPIRES", "USED", "ENDS"]
    assert [line.split()[1] for line in shown[1:]] == ["k2", "k1", "k0", "gone", "key"]
    assert "revoked" in next(line for line in shown if "gone" in line)
    assert gone not in await workspace.done("keys", "list", "--status", "active")
    [one] = lines(await workspace.done("keys", "list", "--status", "revoked", "--json"))
    assert one["id"] == gone
    assert [
        key["name"] for key in lines(await workspace.done("keys", "list", "--limit", "2", "--json"))
    ] == [
        "k2",
        "k1",
    ]


async def test_key_has_an_external_id_and_metadata(workspace: Workspace) -> None:
    given = ("--external-id", "cus_4711", "--metadata", "team=growth", "--metadata", "query=a=b")
    made = json.loads(
        await workspace.done("keys", "create", "--name", "CI", "--scope", "a:b", *given, "--json")
    )
    await workspace.key("a:b")
    assert made["metadata"] == {"team": "growth", "query": "a=b"}
    listed = lines(await workspace.done("keys", "list", "--external-id", "cus_4711", "--json"))
    assert [key["id"] for key in listed] == [made["id"]]
    shown = await workspace.done("keys", "show", made["id"])
    assert re.search(r"external id +cus_4711", shown)
    assert re.search("metadata +team=growth, query=a=b", shown)


async def test_key_is_limited_to_addresses(workspace: Workspace) -> None:
    given = ("--allowed-address", "192.0.2.0/24", "--allowed-address", "2001:db8::7")
    made = json.loads(
        await workspace.done("keys", "create", "--name", "CI", "--scope", "a:b", *given, "--json")
    )
    assert made["allowedAddresses"] == ["192.0.2.0/24", "2001:db8::7"]
    shown = await workspace.done("keys", "show", made["id"])
    assert re.search("allowed addresses +192.0.2.0/24, 2001:db8::7", shown)


async def test_key_is_switched_off_and_on(workspace: Workspace) -> None:
    given = ("--scope", "a:b", "--disabled", "--requests-per-minute", "120")
    made = json.loads(await workspace.done("keys", "create", "--name", "CI", *given, "--json"))
    assert (made["enabled"], made["requestsPerMinute"]) == (False, 120)
    shown = await workspace.done("keys", "show", made["id"])
    assert re.search("enabled +no", shown)
    assert re.search("requests per minute +120", shown)
    [on] = lines(await workspace.done("keys", "enable", made["id"], "--json"))
    assert on == {"id": made["id"], "enabled": True}
    await workspace.done("keys", "disable", made["id"], "--yes")
    assert "switched off" in await workspace.done("keys", "list")


@pytest.mark.parametrize("metadata", ["team", "=growth", ""])
async def test_metadata_without_a_name_and_value_is_a_usage_error(
    workspace: Workspace, metadata: str
) -> None:
    given = ("--name", "CI", "--scope", "a:b", "--metadata", metadata)
    refused = await workspace.run("keys", "create", *given)
    assert (refused.code, refused.out) == (2, "")
    assert "must be NAME=VALUE" in refused.err


async def test_rotation_with_an_overlap_prints_only_the_new_secret(workspace: Workspace) -> None:
    key_id, old = await workspace.key("projects:read", name="CI")
    done = await workspace.run("keys", "rotate", key_id, "--overlap", "1h")
    new = done.out.strip()
    assert done.code == 0
    assert SECRET.fullmatch(new)
    assert new != old
    assert f"{key_id} works until" in done.err
    for secret in (old, new):
        assert (await workspace.run("projects", "list", TENANTRY_API_KEY=secret)).code == 0
    assert "replaced by" in await workspace.done("keys", "show", key_id)


async def test_rotation_without_an_overlap_revokes_the_old_key(workspace: Workspace) -> None:
    key_id, old = await workspace.key("projects:read")
    refused = await workspace.run("keys", "rotate", key_id)
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    rotated = json.loads(await workspace.done("keys", "rotate", key_id, "--yes", "--json"))
    assert rotated["rotatedFrom"] == key_id
    assert (await workspace.run("projects", "list", TENANTRY_API_KEY=old)).code == 4


async def test_revoked_keys_are_rejected_and_revoking_again_succeeds(workspace: Workspace) -> None:
    keys = [await workspace.key("projects:read") for _ in range(2)]
    ids = [key_id for key_id, _ in keys]
    done = await workspace.run("keys", "revoke", *ids, ids[0], "--yes")
    assert (done.code, done.out) == (0, "")
    assert done.err == "".join(f"Revoked {key_id}.\n" for key_id in ids)
    assert lines(await workspace.done("keys", "revoke", ids[0], "--yes", "--json")) == [
        {"id": ids[0], "status": "revoked"}
    ]
    assert (await workspace.run("projects", "list", TENANTRY_API_KEY=keys[0][1])).code == 4


async def test_revoking_an_unknown_key_exits_with_5(workspace: Workspace) -> None:
    assert (await workspace.run("keys", "revoke", "key_nobody", "--yes")).code == 5
    assert (await workspace.run("keys", "revoke", "..", "--yes")).code == 2


async def test_failed_revocation_does_not_stop_the_others(workspace: Workspace) -> None:
    key_id, secret = await workspace.key("projects:read")
    done = await workspace.run("keys", "revoke", "key_nobody", key_id, "--yes")
    assert done.code == 5
    assert "key_nobody: " in done.err
    assert f"Revoked {key_id}." in done.err
    assert (await workspace.run("projects", "list", TENANTRY_API_KEY=secret)).code == 4


async def test_nothing_is_revoked_unless_every_confirmation_is_yes(workspace: Workspace) -> None:
    one, two = [(await workspace.key("projects:read"))[0] for _ in range(2)]
    done = await workspace.at_terminal("y\nn\n", "keys", "revoke", one, two)
    assert (done.code, "Nothing was done." in done.err) == (1, True)
    assert '"active"' in await workspace.done("keys", "show", one, "--json")


async def test_secret_instead_of_an_id_is_not_sent(workspace: Workspace) -> None:
    _, secret = await workspace.key("projects:read")
    done = await workspace.run("keys", "show", secret)
    assert done.code == 2
    assert "an id begins with key_" in done.err
    assert secret not in done.err


async def test_secret_with_another_prefix_instead_of_an_id_is_not_sent(
    workspace: Workspace,
) -> None:
    secret = KeyFormat("acme").compose(Mode.LIVE, bytes(32))
    done = await workspace.run("keys", "show", secret)
    assert done.code == 2
    assert "an id begins with key_" in done.err
    assert secret not in done.err


async def test_no_key_is_created_while_stdout_is_closed(workspace: Workspace) -> None:
    command = "tenantry keys create --name lost --scope a:b"
    closed = await in_shell(workspace, f"{command} >&-")
    assert (closed.returncode, "Traceback" in closed.stderr) == (2, False)
    assert "lost" not in await workspace.done("keys", "list")


@pytest.mark.parametrize("where", [">/dev/full", "| true"])
async def test_unwritable_secret_is_reported_with_the_key_to_revoke(
    workspace: Workspace, where: str
) -> None:
    command = "tenantry keys create --name lost --scope a:b"
    done = await in_shell(workspace, f"{command} {where}; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    [key] = [
        key
        for key in lines(await workspace.done("keys", "list", "--json"))
        if key["name"] == "lost"
    ]
    assert f"tenantry keys revoke {key['id']}" in done.stderr


async def test_list_finds_visible_characters_and_shows_replaced_and_leaked_keys(
    workspace: Workspace,
) -> None:
    key_id, secret = await workspace.key("projects:read")
    await workspace.key("projects:read")
    for fragment in (secret[:13], secret[-4:], f"{secret[:13]}...{secret[-4:]}", key_id):
        assert [
            key["id"]
            for key in lines(await workspace.done("keys", "list", "--search", fragment, "--json"))
        ] == [key_id]
    assert (
        await workspace.run("keys", "list", "--search", "nothing like it")
    ).err == "No API key matches.\n"
    await workspace.done("keys", "rotate", key_id, "--overlap", "1h")
    assert "active (replaced)" in await workspace.done("keys", "list", "--search", key_id)


async def test_list_marks_keys_that_were_not_used_since_their_import(workspace: Workspace) -> None:
    service, organization = workspace.served.service, workspace.organization
    await import_key(service, organization.id, old_key(), name="old")
    shown = await workspace.done("keys", "list", "--search", "old")
    assert "active (imported, not used yet)" in shown


async def test_reason_of_a_revocation_is_in_the_audit_trail(workspace: Workspace) -> None:
    key_id, _ = await workspace.key("a:b")
    await workspace.done("keys", "revoke", key_id, "--yes", "--reason", "The laptop was stolen")
    events = await workspace.organization.owner.get("/api/v1/audit-events")
    [entry] = [each for each in events.json()["data"] if each["action"] == "api_key.revoked"]
    assert (entry["targetId"], entry["reason"]) == (key_id, "The laptop was stolen")

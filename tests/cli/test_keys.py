"""``tenantry keys``: made, listed, shown, rotated and revoked."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cli.support import SECRET, Place, in_shell


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_secret_is_alone_on_stdout_and_works(place: Place) -> None:
    made = await place.run("keys", "create", "--name", "CI", "--scope", "projects:read", "--expires-in", "90d")
    assert made.code == 0
    assert SECRET.fullmatch(made.out.rstrip("\n"))
    assert made.out.count("\n") == 1
    assert "projects:read, live, until" in made.err
    assert not SECRET.search(made.err)
    listed = await place.run("projects", "list", TENANTRY_API_KEY=made.out.strip())
    assert (listed.code, listed.err) == (0, "There are no projects.\n")


async def test_secret_is_in_no_other_output(place: Place) -> None:
    key_id, secret = await place.key("projects:read")
    for arguments in (["keys", "list"], ["keys", "list", "--json"], ["keys", "show", key_id], ["whoami", "--json"]):
        done = await place.run(*arguments)
        assert done.code == 0
        assert not SECRET.search(done.out + done.err)
    assert secret[-4:] in (await place.run("keys", "show", key_id)).out


async def test_expiry_is_so_long_from_now(place: Place) -> None:
    before = datetime.now(UTC)
    made = json.loads(await place.done("keys", "create", "--name", "a", "--owner", "--expires-in", "1w12h", "--json"))
    length = timedelta(weeks=1, hours=12)
    assert before + length <= datetime.fromisoformat(made["expiresAt"]) <= datetime.now(UTC) + length
    assert (made["accessLevel"], made["name"]) == ("OWNER", "a")
    assert SECRET.fullmatch(made["secret"])


async def test_expiry_may_be_a_moment(place: Place) -> None:
    arguments = ("--name", "a", "--scope", "a:b", "--expires-at", "2099-01-31", "--mode", "test", "--json")
    made = json.loads(await place.done("keys", "create", *arguments))
    assert (made["expiresAt"], made["mode"]) == ("2099-01-31T00:00:00Z", "test")


async def test_faulty_requests_are_usage_errors(place: Place) -> None:
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
        done = await place.run("keys", "create", *arguments)
        assert (done.code, done.out) == (2, ""), arguments


async def test_faulty_scope_is_named(place: Place) -> None:
    done = await place.run("keys", "create", "--name", "a", "--scope", "nonsense")
    assert "  scopes" in done.err


async def test_key_is_never_an_argument(place: Place) -> None:
    done = await place.run("keys", "list", "--api-key", "svc_live_x")
    assert done.code == 2
    assert "No such option" in done.err


async def test_list_shows_status_and_keeps_to_it_and_to_the_limit(place: Place) -> None:
    gone, _ = await place.key("a:b", name="gone")
    await place.done("keys", "revoke", gone, "--yes")
    for number in range(3):
        await place.key("a:b", name=f"k{number}")
    shown = (await place.done("keys", "list")).splitlines()
    assert shown[0].split()[:6] == ["ID", "NAME", "STATUS", "EXPIRES", "USED", "ENDS"]
    assert [line.split()[1] for line in shown[1:]] == ["k2", "k1", "k0", "gone", "key"]
    assert "revoked" in next(line for line in shown if "gone" in line)
    assert gone not in await place.done("keys", "list", "--status", "active")
    [one] = lines(await place.done("keys", "list", "--status", "revoked", "--json"))
    assert one["id"] == gone
    assert [key["name"] for key in lines(await place.done("keys", "list", "--limit", "2", "--json"))] == ["k2", "k1"]


async def test_rotation_with_an_overlap_gives_the_new_secret_alone(place: Place) -> None:
    key_id, old = await place.key("projects:read", name="CI")
    done = await place.run("keys", "rotate", key_id, "--overlap", "1h")
    new = done.out.strip()
    assert done.code == 0
    assert SECRET.fullmatch(new)
    assert new != old
    assert f"{key_id} works until" in done.err
    for secret in (old, new):
        assert (await place.run("projects", "list", TENANTRY_API_KEY=secret)).code == 0
    assert "replaced by" in await place.done("keys", "show", key_id)


async def test_rotation_without_an_overlap_ends_the_old_key(place: Place) -> None:
    key_id, old = await place.key("projects:read")
    refused = await place.run("keys", "rotate", key_id)
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    rotated = json.loads(await place.done("keys", "rotate", key_id, "--yes", "--json"))
    assert rotated["rotatedFrom"] == key_id
    assert (await place.run("projects", "list", TENANTRY_API_KEY=old)).code == 4


async def test_revoked_keys_are_refused_and_revoking_again_is_no_failure(place: Place) -> None:
    keys = [await place.key("projects:read") for _ in range(2)]
    ids = [key_id for key_id, _ in keys]
    done = await place.run("keys", "revoke", *ids, ids[0], "--yes")
    assert (done.code, done.out) == (0, "")
    assert done.err == "".join(f"Revoked {key_id}.\n" for key_id in ids)
    assert lines(await place.done("keys", "revoke", ids[0], "--yes", "--json")) == [{"id": ids[0], "status": "revoked"}]
    assert (await place.run("projects", "list", TENANTRY_API_KEY=keys[0][1])).code == 4


async def test_revoking_an_unknown_key_is_a_failure_that_says_so(place: Place) -> None:
    assert (await place.run("keys", "revoke", "key_nobody", "--yes")).code == 5
    assert (await place.run("keys", "revoke", "..", "--yes")).code == 2


async def test_one_key_that_cannot_be_revoked_keeps_none_of_the_others(place: Place) -> None:
    key_id, secret = await place.key("projects:read")
    done = await place.run("keys", "revoke", "key_nobody", key_id, "--yes")
    assert done.code == 5
    assert "key_nobody: " in done.err
    assert f"Revoked {key_id}." in done.err
    assert (await place.run("projects", "list", TENANTRY_API_KEY=secret)).code == 4


async def test_nothing_is_revoked_unless_all_questions_are_answered_with_yes(place: Place) -> None:
    one, two = [(await place.key("projects:read"))[0] for _ in range(2)]
    done = await place.at_terminal("y\nn\n", "keys", "revoke", one, two)
    assert (done.code, "Nothing was done." in done.err) == (1, True)
    assert '"active"' in await place.done("keys", "show", one, "--json")


async def test_secret_in_the_place_of_an_id_is_sent_nowhere(place: Place) -> None:
    _, secret = await place.key("projects:read")
    done = await place.run("keys", "show", secret)
    assert done.code == 2
    assert "an id begins with key_" in done.err
    assert secret not in done.err


async def test_no_key_is_made_where_its_secret_has_nowhere_to_go(place: Place) -> None:
    command = "tenantry keys create --name lost --scope a:b"
    closed = await in_shell(place, f"{command} >&-")
    assert (closed.returncode, "Traceback" in closed.stderr) == (2, False)
    assert "lost" not in await place.done("keys", "list")


@pytest.mark.parametrize("where", [">/dev/full", "| true"])
async def test_secret_that_could_not_be_written_is_told_with_the_key_to_revoke(place: Place, where: str) -> None:
    command = "tenantry keys create --name lost --scope a:b"
    done = await in_shell(place, f"{command} {where}; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    [key] = [key for key in lines(await place.done("keys", "list", "--json")) if key["name"] == "lost"]
    assert f"tenantry keys revoke {key['id']}" in done.stderr


async def test_list_is_searched_by_what_logs_show_and_says_what_was_replaced_or_leaked(place: Place) -> None:
    key_id, secret = await place.key("projects:read")
    await place.key("projects:read")
    for fragment in (secret[:13], secret[-4:], f"{secret[:13]}...{secret[-4:]}", key_id):
        assert [key["id"] for key in lines(await place.done("keys", "list", "--search", fragment, "--json"))] == [
            key_id
        ]
    assert (await place.run("keys", "list", "--search", "nothing like it")).err == "No API key matches.\n"
    await place.done("keys", "rotate", key_id, "--overlap", "1h")
    assert "active (replaced)" in await place.done("keys", "list", "--search", key_id)

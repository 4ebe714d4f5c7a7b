"""Confirmations: on a terminal, and without one."""

import re

from tests.cli.command_support import CTRL_C, SECRET, Workspace, on_terminal


async def test_revocation_names_the_key_and_happens_on_yes(workspace: Workspace) -> None:
    key_id, secret = await workspace.key("projects:read", name="CI")
    assert (await workspace.run("projects", "list", TENANTRY_API_KEY=secret)).code == 0
    shown = await on_terminal(
        workspace.home, workspace.values, "keys", "revoke", key_id, answer="y\n"
    )
    assert shown.code == 0
    question = " ".join(shown.text.split())
    assert 'Revoke "CI"' in question
    used = "(never used|last used .* ago)"  # its use is recorded later
    assert re.search(rf"\.\.\.{secret[-4:]}\), active, {used}\?", question)
    assert f"Revoked {key_id}." in question
    assert (await workspace.run("projects", "list", TENANTRY_API_KEY=secret)).code == 4


async def test_revocation_does_not_happen_on_no(workspace: Workspace) -> None:
    key_id, secret = await workspace.key("projects:read")
    for answer in ("n\n", "\n"):
        done = await workspace.at_terminal(answer, "keys", "revoke", key_id)
        assert done.code == 1
        assert "Nothing was done." in done.err
    assert (await workspace.run("projects", "list", TENANTRY_API_KEY=secret)).code == 0


async def test_confirmation_without_a_terminal_is_a_usage_error(workspace: Workspace) -> None:
    key_id, _ = await workspace.key("a:b")
    project_id = (await workspace.done("projects", "create", "--name", "a")).strip()
    for arguments in (
        ["keys", "revoke", key_id],
        ["keys", "rotate", key_id],
        ["projects", "delete", project_id],
    ):
        done = await workspace.run(*arguments)
        assert (done.code, done.out) == (2, "")
        assert "There is no terminal to confirm on: pass --yes." in done.err
    assert '"active"' in await workspace.done("keys", "show", key_id, "--json")
    await workspace.done("projects", "show", project_id)


async def test_confirmation_is_not_on_stdout(workspace: Workspace) -> None:
    key_id, _ = await workspace.key("projects:read")
    shown = await on_terminal(
        workspace.home, workspace.values, "keys", "rotate", key_id, answer="y\n", captured=True
    )
    assert shown.code == 0
    assert SECRET.fullmatch(shown.out.strip())
    assert "Rotate" in shown.text
    assert not SECRET.search(shown.text)


async def test_ctrl_c_at_the_confirmation_changes_nothing(workspace: Workspace) -> None:
    project_id = (await workspace.done("projects", "create", "--name", "a")).strip()
    shown = await on_terminal(
        workspace.home, workspace.values, "projects", "delete", project_id, answer=CTRL_C
    )
    assert shown.code == 1
    assert "Aborted!" in shown.text
    assert "Traceback" not in shown.text
    await workspace.done("projects", "show", project_id)

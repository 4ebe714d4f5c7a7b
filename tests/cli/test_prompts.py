"""Whoever ends something is asked first, at a terminal; nowhere else, unless told not to be."""

from tests.cli.support import CTRL_C, SECRET, Place, on_terminal


async def test_revocation_names_the_key_and_is_done_on_yes(place: Place) -> None:
    key_id, secret = await place.key("projects:read", name="CI")
    assert (await place.run("projects", "list", TENANTRY_API_KEY=secret)).code == 0
    shown = await on_terminal(place.home, place.values, "keys", "revoke", key_id, answer="y\n")
    assert shown.code == 0
    question = " ".join(shown.text.split())
    assert 'Revoke "CI"' in question
    assert f"...{secret[-4:]}), active, last used" in question
    assert f"Revoked {key_id}." in question
    assert (await place.run("projects", "list", TENANTRY_API_KEY=secret)).code == 4


async def test_revocation_is_left_out_on_no(place: Place) -> None:
    key_id, secret = await place.key("projects:read")
    for answer in ("n\n", "\n"):
        done = await place.at_terminal(answer, "keys", "revoke", key_id)
        assert done.code == 1
        assert "Nothing was done." in done.err
    assert (await place.run("projects", "list", TENANTRY_API_KEY=secret)).code == 0


async def test_nobody_is_asked_off_a_terminal(place: Place) -> None:
    key_id, _ = await place.key("a:b")
    project_id = (await place.done("projects", "create", "--name", "a")).strip()
    for arguments in (["keys", "revoke", key_id], ["keys", "rotate", key_id], ["projects", "delete", project_id]):
        done = await place.run(*arguments)
        assert (done.code, done.out) == (2, "")
        assert "There is no terminal to confirm on: pass --yes." in done.err
    assert '"active"' in await place.done("keys", "show", key_id, "--json")
    await place.done("projects", "show", project_id)


async def test_question_is_not_among_the_results(place: Place) -> None:
    key_id, _ = await place.key("projects:read")
    shown = await on_terminal(place.home, place.values, "keys", "rotate", key_id, answer="y\n", captured=True)
    assert shown.code == 0
    assert SECRET.fullmatch(shown.out.strip())
    assert "Rotate" in shown.text
    assert not SECRET.search(shown.text)


async def test_ctrl_c_at_the_question_does_nothing(place: Place) -> None:
    project_id = (await place.done("projects", "create", "--name", "a")).strip()
    shown = await on_terminal(place.home, place.values, "projects", "delete", project_id, answer=CTRL_C)
    assert shown.code == 1
    assert "Aborted!" in shown.text
    assert "Traceback" not in shown.text
    await place.done("projects", "show", project_id)

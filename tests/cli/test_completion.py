"""What the commands offer for completion. `tests/system/cli` tests it in shells."""

import psycopg

from tests.cli.command_support import Home, Workspace
from tests.cli.sign_in_support import SignInHome
from tests.support.ports import free_port


async def offered(home: Home, *words: str, **values: str) -> list[str]:
    """Return what the command offers bash for the last of these words; it must print nothing
    else.
    """
    line = " ".join(("tenantry", *words))
    count = str(len(words))
    done = await home.run(
        _TENANTRY_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=count, **values
    )
    assert (done.code, done.err) == (0, "")
    return [offer.partition(",")[2] for offer in done.out.splitlines() if offer]


async def test_commands_options_and_ids_are_completed(workspace: Workspace) -> None:
    key_id, _ = await workspace.key("a:b", name="CI für: alle")
    assert await offered(workspace.home, "ke") == ["keys"]
    assert await offered(workspace.home, "keys", "re") == ["revoke"]
    assert await offered(workspace.home, "keys", "list", "--st") == ["--status"]
    assert await offered(workspace.home, "keys", "show", key_id[:-3], **workspace.values) == [
        key_id
    ]


async def test_control_characters_in_names_are_replaced(workspace: Workspace) -> None:
    key_id, _ = await workspace.key("a:b")
    with psycopg.connect(workspace.served.service.conninfo) as connection:
        connection.execute(
            "UPDATE api_keys SET name = %s WHERE id = %s", ("a\x1b[31m\nb\u202ec", key_id)
        )
    line = f"tenantry keys show {key_id}"
    done = await workspace.run(_TENANTRY_COMPLETE="zsh_complete", COMP_WORDS=line, COMP_CWORD="3")
    assert done.out.splitlines() == ["plain", key_id, "a\ufffd[31m\ufffdb\ufffdc"]


async def test_ids_on_the_line_are_not_offered_again(workspace: Workspace) -> None:
    one, _ = await workspace.key("a:b")
    two, _ = await workspace.key("a:b")
    offers = await offered(workspace.home, "keys", "revoke", one, "key_", **workspace.values)
    assert two in offers
    assert one not in offers


async def test_ids_come_from_the_service_on_the_line(workspace: Workspace) -> None:
    secret = workspace.values["TENANTRY_API_KEY"]
    project_id = (await workspace.done("projects", "create", "--name", "a")).strip()
    words = ("projects", "show", "--base-url", workspace.served.url, "proj_")
    assert await offered(workspace.home, *words, TENANTRY_API_KEY=secret) == [project_id]


async def test_completion_does_not_refresh_the_token(sign_in_home: SignInHome) -> None:
    assert (await sign_in_home.sign_in()).code == 0
    sign_in_home.expire()
    before = sign_in_home.stored_tokens
    assert await offered(sign_in_home.home, "keys", "show", "key_nobody") == []
    assert sign_in_home.stored_tokens == before


async def test_completion_without_a_service_is_silent(home: Home) -> None:
    home.configure("[profiles.broken]\nnonsense = 1\n")
    for values in (
        {},
        {"TENANTRY_API_KEY": "svc_live_x", "TENANTRY_BASE_URL": f"http://127.0.0.1:{free_port()}"},
    ):
        assert await offered(home, "keys", "show", "key_", **values) == []

"""``tenantry billing checkout``."""

from tests.cli.command_support import Workspace
from tests.support.cases import cases


@cases(
    "arguments",
    [
        ["--addon", "storage"],
        ["--addon", "=2"],
        ["--addon", "storage=two"],
        ["--addon", "storage=1", "--addon", "storage=2"],
        ["--quantity", "0"],
    ],
)
async def test_faulty_orders_are_usage_errors(workspace: Workspace, arguments: list[str]) -> None:
    assert (await workspace.run("billing", "checkout", "pro", *arguments)).code == 2


async def test_malformed_currency_is_named(workspace: Workspace) -> None:
    done = await workspace.run("billing", "checkout", "pro", "--currency", "euros")
    assert (done.code, done.out) == (2, "")
    assert "currency" in done.err


async def test_service_without_a_provider_key_says_so(workspace: Workspace) -> None:
    done = await workspace.run("billing", "checkout", "pro")
    assert (done.code, done.out) == (1, "")
    assert "PROVIDER_SECRET_KEY" in done.err

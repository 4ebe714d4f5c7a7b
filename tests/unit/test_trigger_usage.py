"""Usage errors of `tenantry trigger` and `tenantry listen`, and output that needs no service."""

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tenantry.cli import main
from tenantry.domain.billing.events import KNOWN_TYPES
from tenantry_devkit.local.stories import stories
from tests.support.cases import cases

UPDATED = "customer.subscription.updated"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder without .env file and demo."""
    return tmp_path


def invoke(folder: Path, *arguments: str, **values: str) -> Result:
    runner = CliRunner(
        env={
            "XDG_STATE_HOME": str(folder / "state"),
            "PROVIDER_WEBHOOK_SECRET": "whsec_x",
            **values,
        }
    )
    with contextlib.chdir(folder):
        return runner.invoke(main, arguments)


@cases(
    ("arguments", "message"),
    [
        ((), "a type or a story"),
        (("invoice.created",), "neither a type that tenantry handles nor a story"),
        (("story:of-nothing",), "There is no story 'of-nothing'. There are failed-renewal"),
        (("invoice.payment_failed", "--status", "active"), "--status is for"),
        ((UPDATED, "--status", "fine"), "'fine' is not one of"),
        (
            (UPDATED, "--plan", "gold"),
            "no plan with a price is 'gold'; there are free, pro, business",
        ),
        ((UPDATED, "--tenant", "a b"), "is no tenant id"),
        ((UPDATED, "--dry-run", "--override", "statsu=x"), "there is no 'statsu'"),
        (("story:trial", "--override", "a=b"), "--override is for events of a TYPE"),
        (("story:trial", "--subscription", "sub_1"), "--subscription is for events of a TYPE"),
        (("story:trial", "--times", "2"), "--times is not for stories"),
        (("story:trial", "--dry-run"), "--dry-run is for events of a TYPE"),
        ((UPDATED, "--forward-to", "ftp://x"), "must be an http address, host:port, or a port"),
        ((UPDATED,), "Say which tenant"),
    ],
)
def test_usage_errors_of_trigger(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    result = invoke(folder, "trigger", *arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())


def test_trigger_needs_a_secret(folder: Path) -> None:
    result = invoke(folder, "trigger", UPDATED, PROVIDER_WEBHOOK_SECRET="")
    assert result.exit_code == 1
    assert "PROVIDER_WEBHOOK_SECRET is not set" in result.output


def test_list_has_types_and_stories(folder: Path) -> None:
    lines = invoke(folder, "trigger", "--list").stdout.splitlines()
    listed = {line.split()[0] for line in lines if "  " in line}
    assert listed == KNOWN_TYPES | {f"story:{name}" for name in stories()}
    assert max(map(len, lines)) <= 80
    said = json.loads(invoke(folder, "trigger", "--list", "--json").stdout)
    assert set(said["types"]) == KNOWN_TYPES
    assert set(said["stories"]) == {f"story:{name}" for name in stories()}


def test_dry_run_needs_no_service(folder: Path) -> None:
    result = invoke(folder, "trigger", "invoice.voided", "--dry-run", "--tenant", "acme")
    assert (result.exit_code, json.loads(result.stdout)["data"]["object"]["status"]) == (0, "void")


def test_dry_run_prints_the_event(folder: Path) -> None:
    result = invoke(
        folder,
        "trigger",
        UPDATED,
        "--dry-run",
        "--tenant",
        "acme",
        "--plan",
        "business",
        "--shape",
        "old",
        "--status",
        "past_due",
        "--override",
        "event.livemode=true",
        PROVIDER_WEBHOOK_SECRET="",
    )
    assert result.exit_code == 0
    event = json.loads(result.stdout)
    thing = event["data"]["object"]
    assert (event["type"], event["livemode"]) == (UPDATED, True)
    assert (thing["status"], thing["metadata"]) == ("past_due", {"orgId": "acme"})
    assert thing["items"]["data"][0]["price"]["id"] == "price_business"
    assert "current_period_end" in thing


@cases(
    ("arguments", "code", "message"),
    [
        (("--forward-to", "http://me:it@x/"), 2, "must hold no credentials"),
        (
            ("--since", "yesterday"),
            2,
            "is neither a duration such as 90s, 15m, 1h, 2d or 1w nor an RFC 3339 time",
        ),
        (("--since", "999999d"), 2, "is too long"),
        (("--since", "2999-01-01"), 2, "is in the future"),
        (("--exec", ""), 2, "names no program"),
        (("--exec", "'"), 2, "No closing quotation"),
        (("--concurrency", "0"), 2, "is not in the range"),
        ((), 1, "PROVIDER_SECRET_KEY is not set"),
    ],
)
def test_usage_errors_of_listen(
    folder: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = invoke(folder, "listen", *arguments)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.output.split())


def test_secret_is_printed_alone_and_stays_the_same(folder: Path) -> None:
    first = invoke(folder, "listen", "--print-secret")
    assert (first.exit_code, first.stderr) == (0, "")
    assert first.stdout.startswith("whsec_")
    assert first.stdout.count("\n") == 1
    assert invoke(folder, "listen", "--print-secret").stdout == first.stdout


def test_secret_that_cannot_be_stored_is_reported(folder: Path) -> None:
    (folder / "state").write_text("not a folder")
    result = invoke(folder, "listen", "--print-secret")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "The signing secret cannot be stored" in result.stderr

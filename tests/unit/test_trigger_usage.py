"""Usage errors of `tenantry trigger` and `tenantry listen`, and output that needs no service."""

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tenantry.domain.billing.events import KNOWN_TYPES
from tenantry_cli.commands import main
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
        ((), "Missing argument: a type"),
        (("invoice.created",), "'invoice.created' is not one of"),
        (("invoice.payment_failed", "--status", "active"), "--status is for"),
        ((UPDATED, "--status", "fine"), "'fine' is not one of"),
        (
            (UPDATED, "--dry-run", "--plan", "gold"),
            "no plan with a price is 'gold'; there are free, pro, business",
        ),
        ((UPDATED, "--org", "a b"), "is no tenant id"),
        ((UPDATED, "--dry-run", "--override", "statsu=x"), "there is no 'statsu'"),
        ((UPDATED, "--forward-to", "ftp://x"), "must be an http address, host:port, or a port"),
        ((UPDATED, "--forward-to", "https://a.example"), "is not on this machine"),
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


def test_list_has_the_types(folder: Path) -> None:
    lines = invoke(folder, "trigger", "--list").stdout.splitlines()
    assert {line.split()[0] for line in lines} == KNOWN_TYPES
    assert max(map(len, lines)) <= 80


def test_dry_run_prints_the_event_without_secret_and_service(folder: Path) -> None:
    options = ("--org", "acme", "--plan", "business", "--status", "past_due")
    more = ("--dry-run", "--override", "event.livemode=true")
    result = invoke(folder, "trigger", UPDATED, *options, *more, PROVIDER_WEBHOOK_SECRET="")
    assert result.exit_code == 0
    event = json.loads(result.stdout)
    thing = event["data"]["object"]
    assert (event["type"], event["livemode"]) == (UPDATED, True)
    assert (thing["status"], thing["metadata"]) == ("past_due", {"orgId": "acme"})
    assert thing["items"]["data"][0]["price"]["id"] == "price_business"


@cases(
    ("arguments", "code", "message"),
    [
        (("--forward-to", "http://me:it@x/"), 2, "must hold no credentials"),
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

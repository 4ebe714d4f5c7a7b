"""``tenantry doctor``, as an operator runs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.support.billing import rows
from tests.support.command_runner import invoke_async
from tests.support.commands import run
from tests.support.issuer import running_issuer
from tests.support.ports import free_port
from tests.support.postgres import as_url
from tests.support.provider_api import KEY, endpoint, running_provider

SECRETS = {
    "PROVIDER_WEBHOOK_SECRET": "whsec_of_the_doctors_0123456789",
    "API_KEY_PEPPER": "pepper-of-the-doctors-0123456789abcdef",
    "SESSION_SECRET": "session-of-the-doctors-0123456789abcdef",
}


@pytest.fixture
def database_url(emptied: str) -> str:
    """The file's database without rows."""
    return as_url(emptied)


class Report(NamedTuple):
    code: int
    text: str
    errors: str

    def findings(self) -> list[dict[str, Any]]:
        """The findings of the JSON report."""
        findings: list[dict[str, Any]] = msgspec.json.decode(self.text)["findings"]
        return findings

    def levels(self) -> dict[str, str]:
        """The level of each subject, from the JSON report."""
        return {finding["subject"]: finding["level"] for finding in self.findings()}

    def warnings(self, *subjects: str) -> list[str]:
        """The warnings about these subjects, from the JSON report."""
        return [
            finding["message"]
            for finding in self.findings()
            if finding["level"] == "warning" and finding["subject"] in subjects
        ]


async def doctor(folder: Path, values: Mapping[str, str], *options: str) -> Report:
    """The command in this process."""
    return Report(*await invoke_async("doctor", *options, folder=folder, **values))


async def test_malformed_database_address_is_reported_once(tmp_path: Path) -> None:
    report = await doctor(
        tmp_path, {**SECRETS, "DATABASE_URL": "me:hunter2@db.example/a"}, "--json"
    )
    assert report.levels() == {"DATABASE_URL": "error", "connections": "warning"}
    assert "hunter2" not in report.text + report.errors


async def test_warnings_alone_are_no_failure(tmp_path: Path, database_url: str) -> None:
    report = await doctor(tmp_path, {**SECRETS, "DATABASE_URL": database_url}, "--json")
    assert report.levels() == {
        "settings": "ok",
        "BASE_URL": "ok",
        "secrets": "ok",
        "plans": "ok",
        "database": "ok",
        "schema": "ok",
        "connections": "ok",
        "database roles": "ok",
        "mail": "warning",
        "billing ledger": "ok",
        "tenants": "ok",
        "identity provider": "warning",
        "payment provider": "warning",
    }
    assert (report.code, report.errors) == (0, "")


async def test_the_endpoint_is_searched_under_the_base_url(
    tmp_path: Path, database_url: str
) -> None:
    async with running_provider() as provider:
        provider.endpoints = [
            endpoint(1, "https://api.example/api/v1/webhooks/payment-provider", ["a.b"])
        ]
        values = {
            "PROVIDER_SECRET_KEY": KEY,
            "PROVIDER_API_BASE": provider.url,
            "BASE_URL": "https://api.example/",
        }
        report = await doctor(tmp_path, {**SECRETS, **values, "DATABASE_URL": database_url})
    assert "webhooks/payment-provider lacks checkout.session.completed" in report.text
    assert report.code == 0


async def test_a_proxy_is_not_asked_for_what_is_on_this_machine(
    tmp_path: Path, database_url: str
) -> None:
    async with running_provider() as provider, running_issuer() as issuer:
        values = {
            "HTTP_PROXY": f"http://127.0.0.1:{free_port()}",
            "PROVIDER_SECRET_KEY": KEY,
            "PROVIDER_API_BASE": provider.url,
            "OIDC_ISSUER": issuer.url,
            "OIDC_AUDIENCE": "api",
        }
        report = await doctor(
            tmp_path, {**SECRETS, **values, "DATABASE_URL": database_url}, "--json"
        )
    assert report.levels()["identity provider"] == "ok"
    assert "/v1/webhook_endpoints" in {request.path for request in provider.requests}


BILLING = ("billing ledger", "tenants")


async def test_billing_is_measured_by_its_settings(tmp_path: Path, database_url: str) -> None:
    await rows(
        database_url,
        "INSERT INTO tenants (id, name, owner_id, owner_email, subscription_status, current_period_end) "
        "VALUES ('acme', 'Acme', 'usr', 'o@x.example', 'active', extract(epoch FROM now())::bigint - 7200)",
    )
    await rows(
        database_url,
        "INSERT INTO customers VALUES ('cus', 'acme', 'operator', now() - interval '4 hours')",
    )
    strict = {"STALE_TENANT_HOURS": "1", "RECONCILE_HOURS": "1"}
    async with running_provider() as provider:
        key = {"PROVIDER_SECRET_KEY": KEY, "PROVIDER_API_BASE": provider.url}
        values = {**SECRETS, "DATABASE_URL": database_url}
        lenient = await doctor(tmp_path, {**values, **key}, "--json")
        found = await doctor(tmp_path, {**values, **key, **strict}, "--json")
        without_key = await doctor(tmp_path, {**values, **strict}, "--json")
        never = await doctor(
            tmp_path, {**values, **key, **strict, "RECONCILE_HOURS": "0"}, "--json"
        )
    assert lenient.warnings(*BILLING) == []
    always = ["no billing event more than 1 h after the end of their period: 1 (acme)"]
    assert found.warnings(*BILLING) == [
        *always,
        "not compared with the provider for more than 3 h: 1 (acme)",
    ]
    assert without_key.warnings(*BILLING) == never.warnings(*BILLING) == always


async def test_the_key_determines_the_mode_of_events(tmp_path: Path, database_url: str) -> None:
    await rows(
        database_url,
        "INSERT INTO billing_events (id, arrival, type, created, received_at, outcome, anomalies, document) "
        "VALUES ('evt', 1, 'x', 1, now(), 'ignored', '{wrong_livemode}', '{\"livemode\": true}')",
    )
    async with running_provider() as provider:
        values = {
            "PROVIDER_SECRET_KEY": KEY,
            "PROVIDER_API_BASE": provider.url,
            "DATABASE_URL": database_url,
        }
        report = await doctor(tmp_path, {**SECRETS, **values}, "--json")
    [warning] = report.warnings(*BILLING)
    assert "of live mode, while PROVIDER_SECRET_KEY is a key of test mode: 1" in warning


async def test_broken_parts_are_failures(tmp_path: Path, database_url: str) -> None:
    values = {
        "SMTP_URL": f"smtp://app:hunter2@127.0.0.1:{free_port()}",
        "MAIL_FROM": "billing@example.com",
    }
    report = Report(
        *await run("doctor", folder=tmp_path, **SECRETS, **values, DATABASE_URL=database_url)
    )
    assert report.code == 1
    assert "\nerror    mail: " in report.text
    assert "\n         -> Check SMTP_URL" in report.text
    assert report.text.rstrip().splitlines()[-1].startswith("1 error, 2 warnings, ")


async def test_faulty_settings_do_not_hide_the_database(tmp_path: Path, database_url: str) -> None:
    values = {**SECRETS, "PORT": "many", "SESSION_SECRET": "", "DATABASE_URL": database_url}
    report = await doctor(tmp_path, values, "--json")
    levels = report.levels()
    assert (levels["PORT"], levels["SESSION_SECRET"], levels["schema"]) == ("error", "error", "ok")
    assert levels["connections"] == "warning"
    assert report.code == 1


async def test_an_embedded_database_that_does_not_start(tmp_path: Path) -> None:
    in_the_way = tmp_path / "data"
    in_the_way.touch()
    values = {**SECRETS, "DATABASE_URL": "embedded", "TENANTRY_DATA_DIR": str(in_the_way)}
    report = await doctor(tmp_path, values, "--json")
    assert report.levels()["database"] == "error"
    assert report.code == 1


async def test_without_a_database_doctor_reports_it(tmp_path: Path) -> None:
    report = await doctor(tmp_path, SECRETS, "--json")
    assert report.levels()["DATABASE_URL"] == "error"
    assert report.code == 2


@pytest.mark.parametrize("option", [[], ["--json"]])
async def test_no_secret_is_shown(tmp_path: Path, option: list[str]) -> None:
    secrets = {
        **SECRETS,
        "PROVIDER_SECRET_KEY": "sk_live_0123456789abcdef",
        "OIDC_CLIENT_SECRET": "client-secret-of-the-doctors",
        "OPERATOR_TOKEN": "operator-of-the-doctors-0123456789abcdef",
    }
    async with running_provider() as provider:
        values = {
            **secrets,
            "DATABASE_URL": f"postgresql://app:hunter2@127.0.0.1:{free_port()}/app",
            "SMTP_URL": f"smtp://app:hunter2@127.0.0.1:{free_port()}",
            "MAIL_FROM": "billing@example.com",
            "OIDC_ISSUER": f"http://app:hunter2@127.0.0.1:{free_port()}",
            "OIDC_AUDIENCE": "api",
            "PROVIDER_API_BASE": provider.url,
        }
        report = await doctor(tmp_path, values, *option)
    assert report.code == 1
    for secret in ("hunter2", *secrets.values()):
        assert secret not in report.text + report.errors


async def test_colour_is_for_terminals_that_want_it(tmp_path: Path, database_url: str) -> None:
    values = {**SECRETS, "DATABASE_URL": database_url, "FORCE_COLOR": "1"}
    assert "\x1b[32m" in (await doctor(tmp_path, values)).text
    assert "\x1b[32m" not in (await doctor(tmp_path, {**values, "NO_COLOR": "1"})).text


async def test_each_warning_says_why_it_matters_and_what_to_do(
    tmp_path: Path, database_url: str
) -> None:
    values = {**SECRETS, "DATABASE_URL": database_url, "BASE_URL": "http://api.example"}
    report = await doctor(tmp_path, values, "--json")
    [address] = [finding for finding in report.findings() if finding["subject"] == "BASE_URL"]
    assert address == {
        "level": "warning",
        "subject": "BASE_URL",
        "message": "http://api.example is not https",
        "remedy": "Put a TLS proxy in front (TRUSTED_PROXIES), and set BASE_URL to its https address.",
        "name": "BASE_URL.not_https",
        "tenants": [],
        "why": "Keys, tokens and session cookies are sent unencrypted.",
    }
    text = (await doctor(tmp_path, values)).text
    assert (
        text.index("is not https")
        < text.index("sent unencrypted")
        < text.index("-> Put a TLS proxy")
    )


async def test_the_connections_that_are_needed_are_those_of_all_processes(
    tmp_path: Path, database_url: str
) -> None:
    values = {**SECRETS, "DATABASE_URL": database_url, "WORKERS": "3", "DATABASE_POOL_SIZE": "7"}
    [few] = [
        one
        for one in (await doctor(tmp_path, values, "--json")).findings()
        if one["subject"] == "connections"
    ]
    assert few["message"].startswith("one `tenantry serve` needs up to 48, ")
    pooled = {**values, "DATABASE_POOLER_URL": database_url, "WORKERS": "64"}
    [many] = [
        one
        for one in (await doctor(tmp_path, pooled, "--json")).findings()
        if one["subject"] == "connections"
    ]
    assert (many["level"], many["message"].split(",")[0]) == (
        "warning",
        "one `tenantry serve` needs up to 576",
    )

"""The settings of in-process authentication, and its imports."""

import subprocess
import sys
import traceback

import pytest

from tenantry.settings import SettingsError, load_for_authentication
from tests.support.cases import cases

NEEDED = {
    "DATABASE_URL": "postgresql://db/app",
    "API_KEY_PEPPER": "new-pepper-0123456789abcdef012345,old-" + "0aA" * 12,
}
HEAVY = {
    "litestar",
    "procrastinate",
    "alembic",
    "sqlalchemy",
    "uvicorn",
    "fastapi",
    "django",
    "flask",
    "stripe",
}


def test_database_and_pepper_are_enough() -> None:
    settings = load_for_authentication(NEEDED)
    assert settings.database_url == "postgresql://db/app"
    assert [pepper.reveal()[:4] for pepper in settings.peppers] == ["new-", "old-"]
    assert settings.oidc is None
    assert settings.catalog.limits("free").requests_per_minute is not None


def test_faults_are_all_named_and_no_other_setting_is_missed() -> None:
    with pytest.raises(SettingsError) as raised:
        load_for_authentication({"OIDC_ISSUER": "https://id.example", "TENANTRY_PLANS": "/nowhere"})
    assert [fault.partition(":")[0] for fault in raised.value.faults] == [
        "DATABASE_URL",
        "TENANTRY_PLANS",
        "API_KEY_PEPPER",
        "OIDC_AUDIENCE",
    ]


def test_an_embedded_database_cannot_be_shared() -> None:
    with pytest.raises(
        SettingsError, match=r"^DATABASE_URL: must be the address of the service's database"
    ):
        load_for_authentication({**NEEDED, "DATABASE_URL": "embedded"})


@cases(
    "address",
    [
        "postgresql+psycopg://app:hunter2@db/app",
        "mysql://app:hunter2@db/app",
        "sqlite:///hunter2.db",
    ],
)
@cases("name", ["DATABASE_URL", "DATABASE_POOLER_URL"])
def test_address_of_another_database_is_a_fault_whose_message_does_not_contain_it(
    name: str, address: str
) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: must be an address of PostgreSQL") as raised:
        load_for_authentication({**NEEDED, name: address})
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_irrelevant_settings_are_not_validated() -> None:
    others = {
        "PROVIDER_WEBHOOK_SECRET": "",
        "SUBSCRIPTIONS": "nonsense",
        "PORT": "x",
        "SMTP_URL": "x",
    }
    load_for_authentication({**NEEDED, **others})


@pytest.mark.parametrize("package", ["asgi", "wsgi"])
def test_import_brings_neither_the_services_framework_nor_its_queue(package: str) -> None:
    script = f"import sys, tenantry.{package}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "psycopg" in loaded
    assert not HEAVY & set(loaded)

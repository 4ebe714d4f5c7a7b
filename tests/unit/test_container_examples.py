"""The container file and the compose file: what they say of settings, secrets and privileges."""

import re
from typing import Any, Final

import msgspec

from tenantry import __version__
from tenantry.settings import SECRETS, SETTINGS
from tests.support.cases import cases
from tests.support.installed import ROOT

FOLDER: Final = ROOT / "examples" / "container"
CONTAINERFILE: Final = (ROOT / "Containerfile").read_text("utf-8").replace("\\\n", " ")
COMPOSE: Final[dict[str, Any]] = msgspec.yaml.decode((FOLDER / "compose.yaml").read_bytes())
DEVELOPMENT: Final[dict[str, Any]] = msgspec.yaml.decode(
    (FOLDER / "compose.development.yaml").read_bytes()
)
SECRET_OF: Final = {("migrate", "DATABASE_URL_FILE"): "database_owner_url"}
"""The secret of a setting, if its name differs."""
OURS: Final = ["migrate", "service", "worker"]
VARIABLE: Final = re.compile(r"\$\{[A-Z_]+:-([^}]*)\}")


def test_everything_that_is_installed_is_pinned_with_hashes_or_was_built_here() -> None:
    installs = re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&\n]*", CONTAINERFILE)
    assert len(installs) == 4
    assert all("--require-hashes" in install or "--no-index" in install for install in installs)


def test_images_are_named_by_their_usual_names_and_ours_by_the_version() -> None:
    assert re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE) == [
        "debian:13-slim",
        "gcr.io/distroless/python3-debian13",
    ]
    images = {name: service["image"] for name, service in COMPOSE["services"].items()}
    assert images == {
        "postgres": "postgres:17",
        "proxy": "caddy:2",
        **dict.fromkeys(OURS, f"tenantry:{__version__}"),
    }
    assert f'org.opencontainers.image.version="{__version__}"' in CONTAINERFILE


@cases("name", OURS)
def test_every_part_runs_without_privileges_on_a_read_only_file_system(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]


@cases("name", OURS)
def test_every_setting_is_one_and_every_secret_is_a_file_that_is_handed_over(name: str) -> None:
    service = COMPOSE["services"][name]
    files = {variable.file_name: variable for variable in SECRETS}
    plain = {variable.name for variable in SETTINGS.values() if not variable.is_secret}
    for setting, value in service["environment"].items():
        assert setting in files or setting in plain
        if setting in files:
            folder, _, secret = value.rpartition("/")
            assert (folder, secret) == (
                "/run/secrets",
                SECRET_OF.get((name, setting), files[setting].name.lower()),
            )
            assert secret in service["secrets"]


def test_every_setting_of_development_is_one() -> None:
    known = {name for variable in SETTINGS.values() for name in (variable.name, variable.file_name)}
    for name in ("service", "worker"):
        assert DEVELOPMENT["services"][name]["environment"].keys() <= known


def test_only_the_migration_owns_the_tables() -> None:
    services = COMPOSE["services"].items()
    holders = [
        name for name, service in services if "database_owner_url" in service.get("secrets", [])
    ]
    assert holders == ["migrate"]
    assert COMPOSE["services"]["migrate"]["command"] == [
        "migrate",
        "--grant-to",
        "tenantry_service",
    ]


def test_the_schema_is_there_before_anything_uses_it() -> None:
    for name in ("service", "worker"):
        assert COMPOSE["services"][name]["depends_on"] == {
            "migrate": {"condition": "service_completed_successfully"}
        }
    assert COMPOSE["services"]["migrate"]["depends_on"] == {
        "postgres": {"condition": "service_healthy"}
    }


def test_only_the_proxy_is_published_and_by_default_on_loopback_alone() -> None:
    published = {
        (name, VARIABLE.sub(r"\1", port))
        for file in (COMPOSE, DEVELOPMENT)
        for name, service in file["services"].items()
        for port in service.get("ports", [])
    }
    assert published == {
        ("proxy", "127.0.0.1:80:80"),
        ("proxy", "127.0.0.1:443:443"),
        ("mail", "127.0.0.1:8025:8025"),
    }


def test_the_service_trusts_the_proxy_and_no_other_address() -> None:
    proxy = COMPOSE["services"]["proxy"]["networks"]["default"]["ipv4_address"]
    assert COMPOSE["services"]["service"]["environment"]["TRUSTED_PROXIES"] == proxy


def test_secrets_are_files_that_git_leaves_alone() -> None:
    held = COMPOSE["secrets"]
    assert {name: secret["file"] for name, secret in held.items()} == {
        name: f"secrets/{name}" for name in held
    }
    assert "examples/container/secrets/" in (ROOT / ".gitignore").read_text().splitlines()

"""The units of examples/systemd and their environment file, beside the settings that there are."""

import re
from typing import Final

from tenantry.settings import SECRETS, SETTINGS
from tests.support.cases import cases
from tests.support.installed import ROOT

FOLDER: Final = ROOT / "examples" / "systemd"
UNITS: Final = sorted(path.name for path in FOLDER.glob("*.service"))
HELD_AS: Final = {"tenantry-migrate.service": {"database_url": "database_owner_url"}}
"""Files of secrets that are not named as the credential is."""


def test_the_environment_file_has_settings_that_are_no_secrets() -> None:
    named = re.findall(r"^#?([A-Z][A-Z_]+)=", (FOLDER / "tenantry.env").read_text(), re.MULTILINE)
    assert "BASE_URL" in named
    assert set(named) <= {setting.name for setting in SETTINGS.values() if not setting.is_secret}


@cases("unit", UNITS)
def test_each_secret_of_a_unit_is_a_credential_of_it(unit: str) -> None:
    text = (FOLDER / unit).read_text()
    credentials = dict(re.findall(r"^LoadCredential=(\w+):(\S+)$", text, re.MULTILINE))
    files = dict(re.findall(r"^Environment=(\w+_FILE)=%d/(\w+)$", text, re.MULTILINE))
    assert files == {f"{name.upper()}_FILE": name for name in credentials}
    held = {**{name: name for name in credentials}, **HELD_AS.get(unit, {})}
    assert credentials == {name: f"/etc/tenantry/secrets/{held[name]}" for name in credentials}
    assert files.keys() <= {secret.file_name for secret in SECRETS}

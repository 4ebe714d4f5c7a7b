"""Keys that djangorestframework-api-key makes, in a Django project of their own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

_SETTINGS: Final = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "keys.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["rest_framework_api_key"]
USE_TZ = True
"""
_MANAGE: Final = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "project"
execute_from_command_line(sys.argv)
"""
_CREATE: Final = """
from rest_framework_api_key.models import APIKey

for number in range({number}):
    print(APIKey.objects.create_key(name=f"key {{number}}")[1])
"""


def make_project(folder: Path, number: int) -> list[str]:
    """Write a project with so many keys, and a ``manage.py``; return the keys."""
    (folder / "project.py").write_text(_SETTINGS)
    (folder / "manage.py").write_text(_MANAGE)
    manage(folder, "migrate", "--verbosity", "0")
    return manage(folder, "shell", "--verbosity", "0", "-c", _CREATE.format(number=number)).split()


def manage(folder: Path, *arguments: str) -> str:
    """Run a command of a project; return its output."""
    command = [sys.executable, "-W", "ignore", "manage.py", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


class DrfKeys(NamedTuple):
    """Keys, and the fields of their rows by prefix."""

    secrets: list[str]
    rows: dict[str, dict[str, Any]]

    def members(self, **fields: object) -> list[dict[str, Any]]:
        """The keys as members of an import, in the order of the secrets."""
        rows = [self.rows[secret.partition(".")[0]] for secret in self.secrets]
        return [
            {
                "digest": row["hashed_key"].removeprefix("sha512$$"),
                "name": row["name"],
                "externalId": row["prefix"],
                "start": row["prefix"],
                "createdAt": row["created"],
                "expiresAt": row["expiry_date"],
                **fields,
            }
            for row in rows
        ]


def drf_keys(folder: Path, number: int) -> DrfKeys:
    """Make so many keys in a folder."""
    secrets = make_project(folder, number)
    dump = json.loads(manage(folder, "dumpdata", "rest_framework_api_key.APIKey"))
    return DrfKeys(secrets, {row["fields"]["prefix"]: row["fields"] for row in dump})

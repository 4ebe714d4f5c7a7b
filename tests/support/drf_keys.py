"""Keys that djangorestframework-api-key makes, in a separate process: Django's settings are
global.
"""

import json
import subprocess
import sys
from functools import cache
from typing import Any, Final, NamedTuple

_MAKE: Final = """
import io, json, sys, django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    INSTALLED_APPS=["rest_framework_api_key"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()
from rest_framework_api_key.models import APIKey

call_command("migrate", verbosity=0)
keys = [APIKey.objects.create_key(name=f"key {number}")[1] for number in range(int(sys.argv[1]))]
dump = io.StringIO()
call_command("dumpdata", "rest_framework_api_key.APIKey", stdout=dump)
print(json.dumps([keys, dump.getvalue()]))
"""


class DrfKeys(NamedTuple):
    """Keys, and what ``manage.py dumpdata rest_framework_api_key.APIKey`` prints of them."""

    secrets: list[str]
    dump: str

    def members(self, **fields: object) -> list[dict[str, Any]]:
        """The keys as members of an import, in the order of the secrets."""
        dumped = {row["fields"]["prefix"]: row["fields"] for row in json.loads(self.dump)}
        rows = [dumped[secret.partition(".")[0]] for secret in self.secrets]
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


@cache
def drf_keys(number: int) -> DrfKeys:
    """Make so many keys."""
    command = [sys.executable, "-W", "ignore", "-c", _MAKE, str(number)]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    return DrfKeys(*json.loads(made.stdout))

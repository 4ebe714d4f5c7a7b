"""Find API keys of tenantry with detect-secrets (1.0 or later).

Usage: ``detect-secrets scan -p detect_secrets_plugin.py --exclude-lines tenantry:allow``. A regular
expression cannot check a key's checksum; the answer to a report says whether the text is a key.
"""

import re

from detect_secrets.plugins.base import RegexBasedDetector


class TenantryKeyDetector(RegexBasedDetector):
    """Finds text in the form of an API key."""

    secret_type = "tenantry API key"
    denylist = (
        re.compile(r"svc_(?:live|test)_[0-9A-Za-z]{49}"),
        # with another prefix (KEY_PREFIX)
        re.compile(r"(?<![0-9a-z])(?!svc_)[0-9a-z]{2,16}_(?:live|test)_[0-9A-Za-z]{49}\b"),
    )

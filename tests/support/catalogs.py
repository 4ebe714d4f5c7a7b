"""The plan catalog that most tests of billing use."""

import atexit
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from tenantry.domain.plans import parse_catalog

PLANS: Final = """
[[plans]]
id = "free"
stripe_price_id = "price_free"
[[plans]]
id = "pro"
stripe_price_id = ["price_pro", "price_pro_yearly"]
[[plans]]
id = "business"
stripe_price_id = "price_business"
"""
COUNTED_BY_BILLING_MONTH: Final = """
[[features]]
id = "exports"
type = "metered"
period = "billing_month"
"""
EXTRA_PROJECTS: Final = """
[[addons]]
id = "extra_projects"
name = "Extra projects"
stripe_price_id = "price_projects"
[addons.limits]
projects = 10
"""
CATALOG: Final = parse_catalog(PLANS)
CATALOG_WITH_ADDON: Final = parse_catalog(PLANS + EXTRA_PROJECTS)


@cache
def catalog_file(text: str) -> str:
    """Write a catalog to a file, and return its path, for the setting TENANTRY_PLANS.

    The file of a text is written once, and removed when the process ends.
    """
    with NamedTemporaryFile("w", prefix="plans-", suffix=".toml", delete=False) as file:
        file.write(text)
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return file.name

"""The plan catalog that most tests of billing use."""

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

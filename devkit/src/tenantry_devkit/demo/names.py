"""What the demo calls things; apart from what makes them, which takes long to load."""

from typing import Final

TENANT: Final = "demo"
CUSTOMER: Final = "cus_demo"
AUDIENCE: Final = "tenantry-api"
CLIENT_ID: Final = "tenantry-dashboard"
TEST_KEY: Final = "TENANTRY_DEMO_TEST_KEY"

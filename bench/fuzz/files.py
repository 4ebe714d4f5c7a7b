"""The operator's files: settings and the plan catalog. Errors must name the cause without a
secret.
"""

from typing import Final

from bench.fuzz.target import Target, require, require_storable, text
from tenantry.domain.plans import FREE, CatalogError, parse_catalog
from tenantry.settings import EMBEDDED, SECRETS, SETTINGS, SettingsError, load

_SECRET: Final = "s3cr3t-of-the-fuzzer-0123456789abcdef"  # noqa: S105  # protects nothing
_GOOD: Final = {
    "DATABASE_URL": EMBEDDED,
    "PROVIDER_WEBHOOK_SECRET": f"whsec_{_SECRET}",
    "API_KEY_PEPPER": f"pepper-{_SECRET}",
    "SESSION_SECRET": f"session-{_SECRET}",
}
_OF_SECRETS: Final = {variable.name for variable in SECRETS}
_FILES: Final = {variable.file_name for variable in SECRETS} | {"TENANTRY_PLANS"}


def check_settings(data: bytes) -> None:
    """Require that settings load or raise named errors; ``@`` is replaced by a secret that no
    message may contain.
    """
    values = dict(_GOOD)
    for line in text(data).split("\n"):
        name, _, value = line.partition("=")
        if name in _OF_SECRETS:
            value = value.replace("@", _SECRET)
        if name not in _FILES:  # names of devices would do harm
            values[name] = value.replace("\x00", "")
    try:
        settings = load(values)
    except SettingsError as error:
        require(_SECRET not in str(error), "a message contains a secret", str(error))
        return
    require(_SECRET not in repr(settings.secrets()), "repr shows a secret")
    require(
        settings.base_url.startswith(("http://", "https://")),
        "a base URL with another scheme",
        settings.base_url,
    )
    require(
        "/" not in settings.base_url.partition("://")[2],
        "a base URL with a path",
        settings.base_url,
    )


def check_plans(data: bytes) -> None:
    """Require that a catalog loads or raises named errors."""
    try:
        catalog = parse_catalog(text(data))
    except CatalogError as error:
        require(error.faults, "a catalog is rejected without a reason")
        return
    require(FREE in catalog, "a catalog without the free plan")
    for plan in catalog.plans:
        require_storable(plan.id, 64)
        require(
            all(
                limit is None or 0 <= limit < 2**31
                for limit in (plan.limits.projects, plan.limits.api_keys)
            ),
            "a limit out of bounds",
        )


TARGETS: Final = (
    Target(
        name="settings",
        reads="the environment and `.env`, from the operator",
        check=check_settings,
        seeds=lambda: [
            b"BASE_URL=https://api.example.com:8443\nPORT=3001\nDATABASE_URL=postgresql://user:@@host/db\nWORKERS=2",
            b"SMTP_URL=smtp://user:@@host:25\nMAIL_FROM=Billing <billing@example.com>\nLOG_FORMAT=json",
            b"OIDC_ISSUER=https://issuer.example\nOIDC_AUDIENCE=api\nTRUSTED_PROXIES=10.0.0.0/8, ::1\nRUN_JOBS=0",
            b"BASE_URL=http://[::1\nPROVIDER_SECRET_KEY=sk_live_@\nOPERATOR_TOKEN=@,@\nSESSION_SECRET=aaaaaaaa",
            b"PROVIDER_API_BASE=http://\xe2\x84\x80:99999\nSMTP_URL=smtps://%ff:@@[::1]:0/",
        ],
        words=(
            *(variable.name.encode() + b"=" for variable in SETTINGS.values()),
            *b":// [::1] @ %40".split(),
            b"\n",
        ),
        max_size=1024,
    ),
    Target(
        name="plans",
        reads="the plan catalog, from the operator",
        check=check_plans,
        seeds=lambda: [
            (
                b'[[plans]]\nid = "free"\nname = "Free"\n[plans.limits]\nprojects = 3\n\n'
                b'[[plans]]\nid = "pro"\nstripe_price_id = ["a", "b"]\n'
            ),
            b'[[plans]]\nid = "free"\nlimits = { projects = true, api_keys = -1, x = 1.5 }\nstripe_price_id = 5\n',
            b"plans = " + b"[" * 1500,
            b'[[plans]]\nid = "free"\nlimits.projects = ' + b"9" * 4400,
        ],
        words=(
            b'id = "free"\n',
            *b"[[plans]]\n stripe_price_id [plans.limits] requests_per_minute projects 0x 1979-05-27 nan".split(),
        ),
        max_size=8192,
    ),
)

"""What the operator gives: settings and the plan catalog. A fault must be named, and no secret with it."""

from typing import Final

from bench.fuzz.target import Target, hold, only_text, text
from tenantry.domain.plans import FREE, CatalogError, parse_catalog
from tenantry.settings import EMBEDDED, SECRETS, SETTINGS, SettingsError, load

_SECRET: Final = "s3cr3t-of-the-fuzzer-0123456789abcdef"  # noqa: S105  # of nothing
_GOOD: Final = {
    "DATABASE_URL": EMBEDDED,
    "PROVIDER_WEBHOOK_SECRET": f"whsec_{_SECRET}",
    "API_KEY_PEPPER": f"pepper-{_SECRET}",
    "SESSION_SECRET": f"session-{_SECRET}",
}
_OF_SECRETS: Final = {variable.name for variable in SECRETS}
_FILES: Final = {variable.file_name for variable in SECRETS} | {"TENANTRY_PLANS"}


def check_settings(data: bytes) -> None:
    """Settings are read, or their faults named. ``@`` stands for a secret, which no message may hold."""
    values = dict(_GOOD)
    for line in text(data).split("\n"):
        name, _, value = line.partition("=")
        if name in _OF_SECRETS:
            value = value.replace("@", _SECRET)
        if name not in _FILES:  # the names of files are no bytes from outside, and those of devices do harm
            values[name] = value.replace("\x00", "")
    try:
        settings = load(values)
    except SettingsError as error:
        hold(_SECRET not in str(error), "a message holds a secret", str(error))
        return
    hold(_SECRET not in repr(settings.secrets()), "a secret shows itself")
    hold(settings.base_url.startswith(("http://", "https://")), "a base address of another kind", settings.base_url)
    hold("/" not in settings.base_url.partition("://")[2], "a base address with a path", settings.base_url)


def check_plans(data: bytes) -> None:
    """A catalog is read, or its faults named."""
    try:
        catalog = parse_catalog(text(data))
    except CatalogError as error:
        hold(error.faults, "a catalog is refused without a reason")
        return
    hold(FREE in catalog, "a catalog without its fallback")
    for plan in catalog.plans:
        only_text(plan.id, 64)
        hold(
            all(limit is None or 0 <= limit < 2**31 for limit in (plan.limits.projects, plan.limits.api_keys)),
            "a limit",
        )


TARGETS: Final = (
    Target(
        name="settings",
        meets="the environment and `.env`, of the operator",
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
            b"://",
            b"[::1]",
            b"@",
            b"%40",
            b"\n",
        ),
        largest=1024,
    ),
    Target(
        name="plans",
        meets="the plan catalog, of the operator",
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
            b"[[plans]]\n",
            b'id = "free"\n',
            b"stripe_price_id",
            b"[plans.limits]\n",
            b"requests_per_minute",
            b"projects",
            b"0x",
            b"1979-05-27",
            b"nan",
        ),
        largest=8192,
    ),
)

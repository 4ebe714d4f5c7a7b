"""The settings: what they default to, and the one message that names every fault."""

import json
from pathlib import Path
from typing import Final

import pytest

from tenantry.domain.issuers import Issuers
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.settings import (
    DEMO_FLAG,
    EMBEDDED,
    Setting,
    Settings,
    SettingsError,
    load,
    load_for_admin,
)
from tenantry.settings import SECRETS as SECRET_SETTINGS
from tests.support.cases import cases
from tests.support.webhook_endpoint import OTHER_SECRET, SECRET

SECRETS = {
    "PROVIDER_WEBHOOK_SECRET": "whsec_0123456789abcdef",
    "API_KEY_PEPPER": "pepper-0123456789-0123456789-0123456789",
    "SESSION_SECRET": "session-0123456789-0123456789-0123456789",
}
DATABASE = {"DATABASE_URL": EMBEDDED}
NEEDED = {**DATABASE, **SECRETS}


def faults_of(**values: str) -> list[str]:
    with pytest.raises(SettingsError) as error:
        load({**NEEDED, **values})
    assert str(error.value) == "\n".join(error.value.faults)
    return error.value.faults


def loaded(**values: str) -> Settings:
    return load({**NEEDED, **values})


def test_a_database_and_three_secrets_are_enough() -> None:
    settings = loaded()
    assert (settings.host, settings.port, settings.base_url) == (
        "127.0.0.1",
        3001,
        "http://127.0.0.1:3001",
    )
    assert (settings.workers, settings.database_pool_size, settings.webhook_tolerance) == (
        1,
        5,
        300,
    )
    assert settings.database_url is None
    assert settings.data_dir == Path(".tenantry")
    assert settings.billing.parked_mail_hours == 72
    assert (settings.reconcile_hours, settings.stale_tenant_hours, settings.raw_body_days) == (
        24,
        24,
        90,
    )
    assert settings.billing.subscriptions.value == "any"
    assert not settings.billing.checkout_reference_links
    assert settings.billing.past_due_grace == 65 * 86_400
    unset = (settings.provider_secret_key, settings.oidc, settings.smtp)
    assert unset == (None, None, None)
    assert settings.operator_tokens == ()
    assert settings.trusted_proxies == ()
    assert settings.log_format == "console"
    assert settings.run_jobs
    assert settings.drain_seconds == 5
    assert not settings.demo


def test_one_message_names_everything_that_is_missing() -> None:
    with pytest.raises(SettingsError) as error:
        load({})
    missing_database, *others = error.value.faults
    assert missing_database.startswith("DATABASE_URL: is missing: ")
    assert others == [f"{name}: is missing" for name in SECRETS]


def test_the_demo_alone_does_without_a_database() -> None:
    assert load({**SECRETS, DEMO_FLAG: "true"}).database_url is None


def test_one_message_names_faults_of_every_kind() -> None:
    faults = faults_of(
        API_KEY_PEPPER="", SESSION_SECRET="short", PORT="x", LOG_FORMAT="xml", OPERATOR_TOKEN="op"
    )
    assert sorted(fault.partition(":")[0] for fault in faults) == [
        "API_KEY_PEPPER",
        "LOG_FORMAT",
        "OPERATOR_TOKEN",
        "PORT",
        "SESSION_SECRET",
    ]


@cases("name", SECRETS)
@cases("value", ["", " ", "\t"])
def test_empty_secret_is_missing(name: str, value: str) -> None:
    assert faults_of(**{name: value}) == [f"{name}: is missing"]


@cases(
    ("name", "shortest"),
    [
        ("PROVIDER_WEBHOOK_SECRET", 16),
        ("API_KEY_PEPPER", 32),
        ("SESSION_SECRET", 32),
        ("OPERATOR_TOKEN", 32),
    ],
)
def test_secret_has_a_least_length(name: str, shortest: int) -> None:
    text = "0123456789abcdefghijklmnopqrstuvwxyz"
    assert faults_of(**{name: text[: shortest - 1]}) == [
        f"{name}: is shorter than {shortest} characters"
    ]
    loaded(**{name: text[:shortest]})


HEXADECIMAL: Final = "0123456789abcdef" * 4
"""As ``openssl rand -hex 32`` gives it."""


@cases(
    ("token", "fault"),
    [
        (f"svc_{HEXADECIMAL}", "begins with a prefix of API keys"),
        (f"acme_{HEXADECIMAL}", "begins with a prefix of API keys"),
        (f"operator-{HEXADECIMAL},old_live_{HEXADECIMAL}", "begins with a prefix of API keys"),
        (f"ey.{HEXADECIMAL}.x", "has two dots, as users' tokens do"),
        (HEXADECIMAL, "matches IMPORTED_KEY_PATTERN, as an API key may"),
    ],
)
def test_operator_token_that_could_be_another_credential_is_refused(token: str, fault: str) -> None:
    keys = {
        "KEY_PREFIX": "acme",
        "FORMER_KEY_PREFIXES": "old",
        "IMPORTED_KEY_PATTERN": "[0-9a-f]{32,}",
        "TENANTRY_DEMO": "true",
    }
    expected = [f"OPERATOR_TOKEN: {fault}: choose another token"]
    assert faults_of(OPERATOR_TOKEN=token, **keys) == expected
    several = f"operator-{HEXADECIMAL}, other.{HEXADECIMAL}"
    assert len(loaded(OPERATOR_TOKEN=several, **keys).operator_tokens) == 2


def test_two_equal_operator_tokens_are_refused() -> None:
    token = f"operator-{HEXADECIMAL}"
    assert faults_of(OPERATOR_TOKEN=f"{token},other-{token}, {token}") == [
        "OPERATOR_TOKEN: has two equal tokens: leave one out"
    ]


@cases("name", ["PROVIDER_WEBHOOK_SECRET", "API_KEY_PEPPER", "SESSION_SECRET", "OPERATOR_TOKEN"])
@cases(
    "value",
    [
        "changeme" * 5,
        "Change-Me-0123456789012345678901234567",
        "whsec_the_secret_of_your_endpoint_0123456789",
        "a" * 40,
        "ab" * 20,
    ],
)
def test_known_default_is_refused(name: str, value: str) -> None:
    (fault,) = faults_of(**{name: value})
    assert fault.startswith(f"{name}: is a well-known default")
    assert value not in fault


def test_known_default_behind_the_prefix_of_webhook_secrets_is_refused() -> None:
    assert faults_of(PROVIDER_WEBHOOK_SECRET="whsec_" + "x" * 32)[0].startswith(
        "PROVIDER_WEBHOOK_SECRET: is a well-"
    )


@cases("name", ["PROVIDER_SECRET_KEY", "OIDC_CLIENT_SECRET", "OPERATOR_TOKEN"])
def test_placeholder_is_no_secret(name: str) -> None:
    [fault] = faults_of(**{name: "sk_test_..."})
    assert fault.startswith(f"{name}: is a placeholder of an example")


def test_faults_never_show_the_secret() -> None:
    for fault in faults_of(API_KEY_PEPPER="hunter2", PROVIDER_WEBHOOK_SECRET="hunter2,hunter2"):
        assert "hunter2" not in fault


def test_settings_never_show_their_secrets() -> None:
    shown = repr(
        loaded(
            OPERATOR_TOKEN="0123456789" * 4,
            PROVIDER_SECRET_KEY="sk_test_1",
            OIDC_CLIENT_SECRET="xyzzy",
        )
    )
    for secret in (*SECRETS.values(), "0123456789" * 4, "sk_test_1", "xyzzy"):
        assert secret not in shown


@pytest.mark.parametrize("name", ["PROVIDER_WEBHOOK_SECRET", "API_KEY_PEPPER"])
def test_secrets_are_separated_by_commas_for_rotation(name: str) -> None:
    settings = loaded(**{name: f" {SECRETS[name]} , {SECRETS[name]}-old "})
    held = settings.peppers if name == "API_KEY_PEPPER" else settings.webhook_secrets
    assert [secret.reveal() for secret in held] == [SECRETS[name], f"{SECRETS[name]}-old"]


def test_each_of_several_secrets_is_checked() -> None:
    assert faults_of(API_KEY_PEPPER=f"{SECRETS['API_KEY_PEPPER']},,short") == [
        "API_KEY_PEPPER: holds an empty secret",
        "API_KEY_PEPPER: is shorter than 32 characters",
    ]


def test_demo_takes_weak_secrets() -> None:
    settings = load({"TENANTRY_DEMO": "true", **dict.fromkeys(SECRETS, "weak")})
    assert settings.demo
    assert settings.session_secret.reveal() == "weak"


def test_demo_still_needs_secrets() -> None:
    with pytest.raises(SettingsError) as error:
        load({"TENANTRY_DEMO": "true"})
    assert error.value.faults == [f"{name}: is missing" for name in SECRETS]


BOUNDS = [
    ("PORT", 0, 65535),
    ("WORKERS", 1, 64),
    ("DRAIN_SECONDS", 0, 3600),
    ("DATABASE_POOL_SIZE", 1, 1000),
    ("PROVIDER_WEBHOOK_TOLERANCE", 1, 86400),
    ("PARKED_MAIL_HOURS", 0, 8760),
    ("PAST_DUE_GRACE_DAYS", 0, 3650),
    ("RECONCILE_HOURS", 0, 8760),
    ("STALE_TENANT_HOURS", 1, 8760),
    ("RAW_BODY_DAYS", 1, 36500),
]


@cases(("name", "least", "most"), BOUNDS)
def test_number_is_taken_within_its_bounds(name: str, least: int, most: int) -> None:
    loaded(**{name: str(least)})
    loaded(**{name: f" {most} "})


@cases(("name", "least", "most"), BOUNDS)
def test_anything_else_is_refused_with_the_bounds(name: str, least: int, most: int) -> None:
    for value in (str(least - 1), str(most + 1), "1.0", "1e1", "٣", "0x1", "ten", "9" * 5000):
        assert faults_of(**{name: value}) == [f"{name}: must be a whole number, {least} to {most}"]


def test_hours_and_days_of_billing_are_read() -> None:
    settings = loaded(RECONCILE_HOURS="0", STALE_TENANT_HOURS="48", RAW_BODY_DAYS="30")
    assert (settings.reconcile_hours, settings.stale_tenant_hours, settings.raw_body_days) == (
        0,
        48,
        30,
    )


@cases(
    ("key", "livemode"),
    [
        ("sk_live_1", True),
        ("rk_live_1", True),
        ("sk_test_1", False),
        ("rk_test_1", False),
        ("mine", None),
        ("", None),
    ],
)
def test_the_provider_key_determines_the_mode_of_events(key: str, livemode: bool | None) -> None:
    assert loaded(PROVIDER_SECRET_KEY=key).billing.livemode is livemode


def test_billing_notices_are_a_list() -> None:
    assert loaded().billing.notices == frozenset()
    assert loaded(OWNER_NOTICES="trial_ending, access_ended").billing.notices == {
        "trial_ending",
        "access_ended",
    }
    names = "trial_ending, payment_recovered, subscription_ended, access_ended, quota_used"
    expected = f"OWNER_NOTICES: 'trial_over' is not a notice: choose from {names}"
    assert faults_of(OWNER_NOTICES="trial_ending,trial_over") == [expected]


def test_connected_accounts_are_a_list() -> None:
    assert loaded().billing.accounts == frozenset()
    assert loaded(PROVIDER_ACCOUNTS=" acct_1, acct_2,").billing.accounts == {"acct_1", "acct_2"}
    assert faults_of(PROVIDER_ACCOUNTS="acct_1,cus_1") == [
        "PROVIDER_ACCOUNTS: 'cus_1' is not an account id (acct_...)"
    ]


@cases(
    ("setting", "key", "livemode", "ignores"),
    [
        ("any", "", None, False),
        ("any", "sk_test_1", False, False),
        ("live", "", True, True),
        ("test", "", False, True),
        ("live", "sk_test_1", True, True),
    ],
)
def test_which_mode_counts(setting: str, key: str, livemode: bool | None, ignores: bool) -> None:
    billing = loaded(PROVIDER_LIVEMODE=setting, PROVIDER_SECRET_KEY=key).billing
    assert (billing.livemode, billing.ignores_other_mode) == (livemode, ignores)


@pytest.mark.parametrize("name", ["RUN_JOBS", "CHECKOUT_REFERENCE_LINKS"])
def test_flag_is_true_or_false(name: str) -> None:
    assert faults_of(**{name: "yes"}) == [f"{name}: must be true or false"]


def test_rules_of_subscriptions_are_read() -> None:
    billing = loaded(SUBSCRIPTIONS="each", PAST_DUE_GRACE_DAYS="2").billing
    assert (billing.is_each, billing.past_due_grace) == (True, 172_800)


def test_former_rule_of_subscriptions_is_refused_with_the_present_one() -> None:
    assert faults_of(SUBSCRIPTIONS="newest") == ["SUBSCRIPTIONS: must be one of any, each"]


def test_flags_are_read() -> None:
    settings = loaded(RUN_JOBS="0", CHECKOUT_REFERENCE_LINKS="TRUE")
    assert not settings.run_jobs
    assert settings.billing.checkout_reference_links


@cases(
    ("name", "choices"),
    [
        ("LOG_FORMAT", "console, json"),
        ("SUBSCRIPTIONS", "any, each"),
        ("PROVIDER_LIVEMODE", "any, live, test"),
        ("RAW_BODIES", "off, failed, all"),
    ],
)
def test_choice_names_its_choices(name: str, choices: str) -> None:
    assert faults_of(**{name: "other"}) == [f"{name}: must be one of {choices}"]


@cases("name", ["BASE_URL", "PROVIDER_API_BASE"])
@cases("value", ["tenantry.example", "ftp://x", "http://", "https://[::1", "//x", "javascript:1"])
def test_address_is_http_or_https(name: str, value: str) -> None:
    assert faults_of(**{name: value}) == [f"{name}: must be an http or https address"]


def test_addresses_lose_the_slash_at_the_end() -> None:
    settings = loaded(BASE_URL="https://api.example/", PROVIDER_API_BASE="http://127.0.0.1:1/")
    assert (settings.base_url, settings.provider_api_base) == (
        "https://api.example",
        "http://127.0.0.1:1",
    )


@cases(
    ("value", "origin"),
    [
        ("HTTPS://API.Example", "https://api.example"),
        ("https://api.example:443/", "https://api.example"),
        ("http://api.example:80", "http://api.example"),
        ("https://api.example:80", "https://api.example:80"),
        ("http://[::1]:3001", "http://[::1]:3001"),
        (" https://xn--bcher-kva.example ", "https://xn--bcher-kva.example"),
    ],
)
def test_base_url_is_kept_as_browsers_write_it(value: str, origin: str) -> None:
    assert loaded(BASE_URL=value).base_url == origin


@cases(
    ("value", "fault"),
    [
        ("https://me:hunter2@api.example", "must not contain a user or password"),
        ("https://@api.example", "must not contain a user or password"),
        ("https://api.example/?", "must not have a query or a fragment: no `?`, no `#`"),
        ("https://api.example#top", "must not have a query or a fragment: no `?`, no `#`"),
        (
            "https://api.example/accounts",
            "must not have a path: the service is at the root of its host",
        ),
        ("https://api.example//", "must not have a path: the service is at the root of its host"),
        ("https://api.example:65536", "has an invalid port"),
        ("https://api.example:x", "has an invalid port"),
        (
            "https://b\u00fccher.example",
            "must name its host in ASCII letters (`xn--...`), digits, dots and hyphens",
        ),
        (
            "https://api example",
            "must name its host in ASCII letters (`xn--...`), digits, dots and hyphens",
        ),
    ],
)
def test_base_url_is_a_scheme_a_host_and_a_port_alone(value: str, fault: str) -> None:
    assert faults_of(BASE_URL=value) == [f"BASE_URL: {fault}"]


def test_origins_of_pages_are_kept_as_browsers_write_them() -> None:
    assert loaded().cors_origins == ()
    assert loaded(CORS_ORIGINS="*").cors_origins == ("*",)
    assert loaded(CORS_ORIGINS="HTTPS://App.Example:443/, http://localhost:5173,").cors_origins == (
        "https://app.example",
        "http://localhost:5173",
    )


@cases(
    "origin",
    [
        "app://-",
        "app://.",
        "app://bundle",
        "capacitor://localhost",
        "chrome-extension://aapbdbdomjkkjkaonfhkkikfgjllcleb",
        "http://tauri.localhost",
        "ionic://localhost:8100",
        "moz-extension://2c127fa4-62c7-7e4f-90e5-472b45eecfdc",
        "my.app+v2://localhost",
        "tauri://localhost",
    ],
)
def test_origins_of_applications_are_kept_as_their_runtimes_send_them(origin: str) -> None:
    assert loaded(CORS_ORIGINS=f"{origin}, {origin}/").cors_origins == (origin, origin)


@cases(
    ("value", "fault"),
    [
        ("capacitor://localhost/login", "'capacitor://localhost/login' must not have a path: "),
        ("capacitor://localhost//", "'capacitor://localhost//' must not have a path: "),
        ("capacitor://localhost?a=b", "'capacitor://localhost?a=b' must not have a query"),
        ("capacitor://localhost#", "'capacitor://localhost#' must not have a query"),
        ("app://me:hunter2@bundle", "an entry must not contain a user or password"),
        ("app://hunter2@bundle", "an entry must not contain a user or password"),
        ("capacitor://localhost:0", "'capacitor://localhost:0' has an invalid port"),
        ("capacitor://localhost:65536", "'capacitor://localhost:65536' has an invalid port"),
        ("capacitor://localhost:x", "'capacitor://localhost:x' has an invalid port"),
        ("Capacitor://localhost", "'Capacitor://localhost' must be in lower case"),
        ("app://Bundle", "'app://Bundle' must be in lower case"),
        ("app://*", "'app://*' must name its host"),
        ("app://b\u00fcndel", "'app://b\u00fcndel' must name its host"),
        ("app://%61", "'app://%61' must name its host"),
        ("app://", "'app://' must be an http or https address, or the origin of an application"),
        ("app:///index.html", "'app:///index.html' must be an http or https address, or "),
        ("capacitor:localhost", "'capacitor:localhost' must be an http or https address, or "),
        ("localhost:5173", "'localhost:5173' must be an http or https address, or "),
        ("://localhost", "'://localhost' must be an http or https address, or "),
        ("1app://localhost", "'1app://localhost' must be an http or https address, or "),
        ("htps://app.example", "'htps://app.example' must be an http or https address, or "),
        ("app://[::1", "'app://[::1' must be an http or https address, or "),
        ("javascript:alert(1)", "'javascript:alert(1)' is the origin of no page"),
        ("javascript://localhost", "'javascript://localhost' is the origin of no page"),
        ("data:text/html", "'data:text/html' is the origin of no page"),
        ("FILE:///index.html", "'FILE:///index.html' is the origin of no page"),
        ("blob:https://app.example/1", "'blob:https://app.example/1' is the origin of no page"),
        ("about:blank", "'about:blank' is the origin of no page"),
        ("wss://app.example", "'wss://app.example' is the origin of no page"),
    ],
)
def test_origin_that_no_application_sends_is_refused(value: str, fault: str) -> None:
    [found] = faults_of(CORS_ORIGINS=f"capacitor://localhost, {value}")
    assert found.startswith(f"CORS_ORIGINS: {fault}")
    assert "hunter2" not in found


@cases(
    ("value", "fault"),
    [
        ("app.example", "'app.example' must be an http or https address"),
        ("http://localhost:0", "'http://localhost:0' has an invalid port"),
        ("https://app.example/login", "'https://app.example/login' must not have a path: "),
        ("https://*.example", "'https://*.example' must name its host in ASCII letters"),
        ("https://me:hunter2@app.example", "an entry must not contain a user or password"),
        ("Null", "must not contain null: "),
    ],
)
def test_each_origin_of_pages_is_a_scheme_a_host_and_a_port_alone(value: str, fault: str) -> None:
    found = faults_of(CORS_ORIGINS=f"https://good.example, {value}")
    assert [one.startswith(f"CORS_ORIGINS: {fault}") for one in found] == [True], found
    assert "hunter2" not in found[0]


OIDC: Final = {"OIDC_ISSUER": "https://id.example", "OIDC_AUDIENCE": "api"}


@cases(
    ("value", "fault"),
    [
        ("api.example", "must be an http or https address"),
        ("ftp://api.example", "must be an http or https address"),
        ("http://api.example/mcp", "must be https (plain http only on loopback)"),
        ("https://me:hunter2@api.example", "must not contain a user or password"),
        ("https://api.example/mcp?a=b", "must not have a query or a fragment: no `?`, no `#`"),
        ("https://api.example/mcp#a", "must not have a query or a fragment: no `?`, no `#`"),
        ("https://api.example:0/", "has an invalid port"),
        ('https://api.example/"x', "must be at most 2000 of the characters of addresses"),
        ("https://api.example/a b", "must be at most 2000 of the characters of addresses"),
        ("https://api.example/\u00e9", "must be at most 2000 of the characters of addresses"),
        (f"https://a.example/{'x' * 2000}", "must be at most 2000 of the characters of addresses"),
    ],
)
def test_protected_resource_is_an_address_that_clients_can_compare(value: str, fault: str) -> None:
    assert faults_of(OAUTH_RESOURCE=value, **OIDC) == [f"OAUTH_RESOURCE: {fault}"]


def test_protected_resource_needs_an_identity_provider() -> None:
    assert loaded().protected_resource is None
    assert loaded(OAUTH_RESOURCE="http://127.0.0.1:80/mcp/", **OIDC).protected_resource is not None
    assert faults_of(OAUTH_RESOURCE="https://api.example") == [
        "OAUTH_RESOURCE: needs OIDC_ISSUER, which its metadata names"
    ]


@cases(
    ("values", "servers"),
    [
        ({"OIDC_ISSUER": "https://id.example/"}, ["https://id.example/"]),
        (
            {"OIDC_ISSUER": "https://id.example/{tenantid}/v2.0", "OIDC_DIRECTORIES": "one, two"},
            ["https://id.example/one/v2.0", "https://id.example/two/v2.0"],
        ),
        (
            {"OIDC_ISSUER": "https://id.example/{tenantid}/v2.0", "OIDC_DIRECTORIES": "*"},
            ["https://id.example/organizations/v2.0"],
        ),
    ],
)
def test_metadata_of_the_resource_names_every_issuer(
    values: dict[str, str], servers: list[str]
) -> None:
    settings = loaded(OAUTH_RESOURCE="https://api.example", **{**OIDC, **values})
    assert settings.protected_resource is not None
    answer = settings.protected_resource.find("GET", "/.well-known/oauth-protected-resource")
    assert answer is not None
    assert json.loads(answer.body)["authorization_servers"] == servers


def test_keys_begin_as_the_settings_say() -> None:
    assert loaded().key_format.credential_starts == (b"svc_",)
    settings = loaded(KEY_PREFIX="acme", FORMER_KEY_PREFIXES="old, older,")
    assert settings.key_format.prefix == "acme"
    assert settings.key_format.credential_starts == (b"acme_", b"old_", b"older_", b"svc_")


def test_prefixes_of_keys_are_checked_one_by_one() -> None:
    fault = "is not 2 to 16 lower-case letters (a-z) and digits"
    assert faults_of(KEY_PREFIX="Acme", FORMER_KEY_PREFIXES="ok, a, old_") == [
        f"KEY_PREFIX: 'Acme' {fault}",
        f"FORMER_KEY_PREFIXES: 'a' {fault}",
        f"FORMER_KEY_PREFIXES: 'old_' {fault}",
    ]


@cases("name", ["X-API-Key", "apikey", "Ocp-Apim-Subscription-Key", "X"])
def test_any_other_header_may_be_that_for_keys(name: str) -> None:
    assert loaded().credentials.api_key_header is None
    assert loaded(API_KEY_HEADER=name).credentials.api_key_header == name


@cases(
    "name",
    [
        *(
            "Authorization",
            "cookie",
            "HOST",
            "X-Organization-Id",
            "X-Act-As-Organization",
            "X-On-Behalf-Of",
            "Idempotency-Key",
            "Content-Type",
        ),
        *("Proxy-Authorization", "X-Request-Id", "X-Forwarded-For", "X-Tenant-Id", "Origin"),
        *("Provider-Signature", "Stripe-Signature", "Sec-Fetch-Site", "If-None-Match", "TE"),
        *("Accept", "Accept-Encoding", "X-HTTP-Method-Override", "X-Principal-Kind"),
    ],
)
def test_header_with_a_meaning_of_its_own_is_not_that_for_keys(name: str) -> None:
    (fault,) = faults_of(API_KEY_HEADER=name)
    assert fault == (
        f"API_KEY_HEADER: {name!r} already has a meaning: choose another, such as X-API-Key"
    )


@cases("name", ["X_API_Key", "X API Key", "X-API-Key:", "-x", "x-", "1x", "x" * 65])
def test_header_for_keys_is_one_that_every_proxy_forwards(name: str) -> None:
    (fault,) = faults_of(API_KEY_HEADER=name)
    assert fault.startswith("API_KEY_HEADER: must be the name of a header: ")


def test_base_url_follows_the_port() -> None:
    assert loaded(PORT="8080").base_url == "http://127.0.0.1:8080"


def test_proxies_are_addresses_or_networks() -> None:
    assert loaded(TRUSTED_PROXIES="10.0.0.0/8, ::1 ,").trusted_proxies == ("10.0.0.0/8", "::1")
    assert faults_of(TRUSTED_PROXIES="10.0.0.1, proxy") == [
        "TRUSTED_PROXIES: 'proxy' is not an address or network"
    ]


def test_package_comes_with_a_catalog() -> None:
    assert [plan.id for plan in loaded().billing.catalog.plans] == ["free", "pro", "business"]


def test_catalog_faults_come_one_by_one(tmp_path: Path) -> None:
    catalog = tmp_path / "plans.toml"
    catalog.write_text('colour = 1\n[[plans]]\nid = "pro"\n')
    assert faults_of(TENANTRY_PLANS=str(catalog)) == [
        "TENANTRY_PLANS: unknown key 'colour'",
        "TENANTRY_PLANS: the plan 'free' is missing: it is the fallback and downgrade plan",
    ]


@pytest.mark.parametrize("is_absolute", [True, False])
def test_secrets_of_webhooks_are_read_from_a_file_beside_the_catalog(
    tmp_path: Path, *, is_absolute: bool
) -> None:
    file = tmp_path / "app.secrets"
    file.write_text(f"{SECRET}\n{OTHER_SECRET}\n")
    path = str(file) if is_absolute else file.name
    catalog = catalog_with_secrets_file(tmp_path, path)
    [endpoint] = loaded(TENANTRY_PLANS=catalog).catalog.webhooks
    assert [secret.reveal() for secret in endpoint.secrets] == [SECRET, OTHER_SECRET]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, ": {} cannot be read: No such file or directory"),
        (b"\n", ": {} is empty"),
        (b"whsec_\xff", ": {} is not UTF-8 text"),
        (
            f"{SECRET}x".encode(),
            " app.secrets: number 1 must be whsec_ and base64 of 24 to 64 bytes",
        ),
    ],
)
def test_faulty_file_of_webhook_secrets_is_named_without_its_content(
    tmp_path: Path, content: bytes | None, fault: str
) -> None:
    file = tmp_path / "app.secrets"
    if content is not None:
        file.write_bytes(content)
    shown = fault.format(file)
    assert faults_of(TENANTRY_PLANS=catalog_with_secrets_file(tmp_path, file.name)) == [
        f"TENANTRY_PLANS: webhook 'app': secrets_file{shown}"
    ]


def catalog_with_secrets_file(folder: Path, path: str) -> str:
    file = folder / "plans.toml"
    file.write_text(
        f'[[plans]]\nid = "free"\n[[webhooks]]\nname = "app"\nurl = "https://app.example/"\n'
        f'types = ["tenant.*"]\nsecrets_file = "{path}"\n'
    )
    return str(file)


def test_missing_catalog_is_an_error(tmp_path: Path) -> None:
    (fault,) = faults_of(TENANTRY_PLANS=str(tmp_path / "none.toml"))
    assert fault.startswith(f"TENANTRY_PLANS: {tmp_path / 'none.toml'} cannot be read")


def test_undecodable_catalog_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "plans.toml").write_bytes(b"\xff\xfe")
    assert faults_of(TENANTRY_PLANS=str(tmp_path / "plans.toml"))[0].startswith("TENANTRY_PLANS: ")


def test_identity_provider_is_read_with_its_claims() -> None:
    oidc = loaded(
        OIDC_ISSUER="https://id.example", OIDC_AUDIENCE="api", OIDC_ROLE_CLAIM="app.role"
    ).oidc
    assert oidc is not None
    assert (oidc.issuer, oidc.audiences, oidc.client_id) == ("https://id.example", ("api",), None)
    assert (oidc.org_claim, oidc.role_claim) == ("org_id", "app.role")


def oidc_of(**values: str) -> OidcConfig:
    oidc = loaded(**{"OIDC_ISSUER": "https://id.example", "OIDC_AUDIENCE": "api", **values}).oidc
    assert oidc is not None
    return oidc


def test_several_audiences_and_the_claim_that_holds_them() -> None:
    oidc = oidc_of(OIDC_AUDIENCE=" first, second,", OIDC_AUDIENCE_CLAIM="client_id")
    assert (oidc.audiences, oidc.audience_claim) == (("first", "second"), "client_id")
    assert oidc_of(OIDC_AUDIENCE_CLAIM=" ").audience_claim == "aud"


def test_lifetime_of_tokens_is_a_number_of_seconds() -> None:
    assert (oidc_of().token_lifetime, oidc_of(OIDC_TOKEN_LIFETIME="600").token_lifetime) == (
        86_400,
        600,
    )
    assert faults_of(OIDC_TOKEN_LIFETIME="0") == [
        "OIDC_TOKEN_LIFETIME: must be a whole number, 1 to 31536000"
    ]


def test_role_map_is_read() -> None:
    mapped = oidc_of(OIDC_ROLE_MAP="Owner=owner, org:admin = admin,a=b=member")
    assert mapped.role_map == {"Owner": "owner", "org:admin": "admin", "a=b": "member"}
    assert oidc_of().role_map["org:owner"] == oidc_of().role_map["owner"] == "owner"


def test_role_map_names_roles_of_the_catalog(tmp_path: Path) -> None:
    plans = tmp_path / "plans.toml"
    plans.write_text('[[plans]]\nid = "free"\n[[roles]]\nid = "lead"\nscopes = ["projects:read"]\n')
    mapped = oidc_of(TENANTRY_PLANS=str(plans), OIDC_ROLE_MAP="Head=lead")
    assert mapped.role_map == {"Head": "lead"}
    unmapped = oidc_of(TENANTRY_PLANS=str(plans))
    assert unmapped.role_map["org:lead"] == unmapped.role_map["lead"] == "lead"


@cases(
    ("value", "faults"),
    [
        ("Owner", ["'Owner' is not `theirs=ours`: ours is the id of a role"]),
        (
            "Owner=Owner",
            ["'Owner=Owner' is not `theirs=ours`: ours is the id of a role"],
        ),
        (
            "=owner, x=",
            [
                "'=owner' is not `theirs=ours`: ours is the id of a role",
                "'x=' is not `theirs=ours`: ours is the id of a role",
            ],
        ),
        ("a=owner,a=admin", ["'a' is mapped twice"]),
        (",", ["maps no role"]),
    ],
)
def test_faulty_role_map_is_refused(value: str, faults: list[str]) -> None:
    assert faults_of(OIDC_ROLE_MAP=value) == [f"OIDC_ROLE_MAP: {fault}" for fault in faults]


def test_role_map_with_an_unknown_role_is_refused() -> None:
    identity_provider = {"OIDC_ISSUER": "https://id.example", "OIDC_AUDIENCE": "api"}
    assert faults_of(**identity_provider, OIDC_ROLE_MAP="Head=boss") == [
        "OIDC_ROLE_MAP: 'boss' is none of owner, admin, member"
    ]


def test_name_of_a_claim_has_no_blank() -> None:
    assert faults_of(OIDC_AUDIENCE_CLAIM="client_id azp") == [
        "OIDC_AUDIENCE_CLAIM: must be the name of one claim"
    ]


TEMPLATE = "https://login.example/{tenantid}/v2.0"


def test_directories_take_their_place_in_the_issuer() -> None:
    assert oidc_of(OIDC_ISSUER=TEMPLATE, OIDC_DIRECTORIES="a-1, b_2").issuers == Issuers(
        TEMPLATE, ("a-1", "b_2")
    )
    assert oidc_of(OIDC_ISSUER=TEMPLATE, OIDC_DIRECTORIES="*").issuers == Issuers(TEMPLATE, ("*",))


@cases(
    ("issuer", "directories", "fault"),
    [
        (
            TEMPLATE,
            "",
            "is missing; OIDC_ISSUER contains {tenantid}, so list the directories (`tid`) that are accepted",
        ),
        ("https://id.example", "a-1", "needs an OIDC_ISSUER that contains {tenantid}"),
        ("", "*", "needs an OIDC_ISSUER that contains {tenantid}"),
        (TEMPLATE, "*,a-1", "`*` accepts every directory: list ids, or `*` alone"),
        (
            TEMPLATE,
            "contoso.example",
            "'contoso.example' is not the id of a directory: it is `tid` of its tokens, not a domain name",
        ),
    ],
)
def test_directories_that_do_not_fit_the_issuer_are_refused(
    issuer: str, directories: str, fault: str
) -> None:
    faults = faults_of(OIDC_ISSUER=issuer, OIDC_AUDIENCE="api", OIDC_DIRECTORIES=directories)
    assert faults == [f"OIDC_DIRECTORIES: {fault}"]


def test_pooler_needs_a_way_past_it() -> None:
    (fault,) = faults_of(DATABASE_POOLER_URL="postgresql://pooler.example/tenantry")
    assert fault.startswith("DATABASE_POOLER_URL: needs DATABASE_URL")


def test_standbys_need_the_address_of_their_primary() -> None:
    (fault,) = faults_of(DATABASE_CHECKS_URL="postgresql://standby.example/tenantry")
    assert fault.startswith("DATABASE_CHECKS_URL: needs DATABASE_URL")


def test_standbys_need_two_connections_of_each_process_to_the_primary() -> None:
    urls = {
        "DATABASE_URL": "postgresql://db.example/a",
        "DATABASE_CHECKS_URL": "postgresql://near.example,far.example/a",
    }
    with_standbys = loaded(WORKERS="3", **urls)
    assert with_standbys.connections == loaded(WORKERS="3").connections + 6


@cases(
    "address",
    [
        "me:hunter2@db.example/a",
        "postgresql//me:hunter2@db.example/a",
        "postgresql://me:hun ter2@db.example/a",
        "postgresql://me@db.example/a?sslmod=require",
        "hunter2",
    ],
)
@cases("variable", ["DATABASE_URL", "DATABASE_POOLER_URL", "DATABASE_CHECKS_URL"])
def test_malformed_database_address_is_not_shown(variable: str, address: str) -> None:
    (fault,) = faults_of(**{"DATABASE_URL": "postgresql://db.example/a", variable: address})
    assert fault.startswith(f"{variable}: must be an address of PostgreSQL")
    assert "ter2" not in fault


@pytest.mark.parametrize("variable", ["DATABASE_POOLER_URL", "DATABASE_CHECKS_URL"])
def test_password_of_another_way_to_the_database_is_a_secret(variable: str) -> None:
    urls = {
        "DATABASE_URL": "postgresql://db.example/a",
        variable: "postgresql://me:hunter2@db.example/a",
    }
    assert "hunter2" in [secret.reveal() for secret in loaded(**urls).secrets()]


def test_issuer_needs_an_audience() -> None:
    (fault,) = faults_of(OIDC_ISSUER="https://id.example")
    assert fault.startswith("OIDC_AUDIENCE: is missing")


def test_http_issuer_is_accepted_on_loopback_or_by_a_setting() -> None:
    assert faults_of(OIDC_ISSUER="http://id.example", OIDC_AUDIENCE="api")[0].startswith(
        "OIDC_ISSUER: must be https"
    )
    loaded(OIDC_ISSUER="http://127.0.0.1:9", OIDC_AUDIENCE="api")
    loaded(OIDC_ISSUER="http://id.example", OIDC_AUDIENCE="api", OIDC_ALLOW_HTTP="true")


def test_mail_needs_a_sender() -> None:
    (fault,) = faults_of(SMTP_URL="smtp://127.0.0.1:25")
    assert fault.startswith("MAIL_FROM: is missing")


def test_mail_server_and_sender_are_read() -> None:
    smtp = loaded(
        SMTP_URL="smtps://me:hunter2@mail.example", MAIL_FROM="Billing <a@b.example>"
    ).smtp
    assert smtp is not None
    assert (smtp.host, smtp.port, smtp.sender) == ("mail.example", 465, "Billing <a@b.example>")


def test_error_in_the_smtp_url_does_not_show_the_password() -> None:
    (fault,) = faults_of(
        SMTP_URL="smtp://me:hunter2@mail.example:25?tls=none", MAIL_FROM="a@b.example"
    )
    assert fault.startswith("SMTP_URL: ")
    assert "hunter2" not in fault


def test_invitations_need_a_mail_server() -> None:
    assert faults_of(INVITATIONS="true") == ["INVITATIONS: needs SMTP_URL, which sends the mails"]
    assert loaded(INVITATIONS="false").invitation_links is None


def test_reminders_of_keys_need_a_mail_server() -> None:
    assert faults_of(KEY_EXPIRY_MAILS="true") == [
        "KEY_EXPIRY_MAILS: needs SMTP_URL, which sends the mails"
    ]
    assert loaded().key_expiry_mails is False


def test_faulty_sender_is_named_as_such() -> None:
    (fault,) = faults_of(SMTP_URL="smtp://127.0.0.1:25", MAIL_FROM="missing")
    assert fault.startswith("MAIL_FROM: ")


def test_operator_commands_need_neither_webhook_nor_session_secret() -> None:
    assert load_for_admin({}, needs_pepper=False).database_url is None
    with pytest.raises(SettingsError) as error:
        load_for_admin({}, needs_pepper=True)
    assert error.value.faults == ["API_KEY_PEPPER: is missing"]


def test_operator_commands_read_what_they_need_of_billing() -> None:
    values = {"STALE_TENANT_HOURS": "2", "PROVIDER_SECRET_KEY": "sk_live_1"}
    settings = load_for_admin(values, needs_pepper=False)
    assert (settings.stale_tenant_hours, settings.billing.livemode) == (2, True)
    with pytest.raises(SettingsError) as error:
        load_for_admin({"STALE_TENANT_HOURS": "0"}, needs_pepper=False)
    assert error.value.faults == ["STALE_TENANT_HOURS: must be a whole number, 1 to 8760"]


@pytest.mark.parametrize(
    "variable", SECRET_SETTINGS, ids=[variable.name for variable in SECRET_SETTINGS]
)
def test_a_secret_may_be_in_a_file(variable: Setting[object], tmp_path: Path) -> None:
    value = {
        "DATABASE_URL": "postgresql://me:hunter2-hunter2@db.example/a",
        "DATABASE_POOLER_URL": "postgresql://me:hunter2-hunter2@pooler.example/a",
        "DATABASE_CHECKS_URL": "postgresql://me:hunter2-hunter2@standby.example/a",
        "SMTP_URL": "smtps://me:hunter2-hunter2@mail.example",
    }.get(variable.name, "hunter2-hunter2-0123456789-0123456789")
    (tmp_path / "secret").write_text(f"{value}\n")
    others = {"MAIL_FROM": "a@b.example", "DATABASE_URL": "postgresql://db.example/a", **SECRETS}
    others.pop(variable.name, None)
    settings = load({**others, variable.file_name: str(tmp_path / "secret")})
    assert any("hunter2-hunter2" in secret.reveal() for secret in settings.secrets())


def test_a_setting_that_is_no_secret_is_in_no_file(tmp_path: Path) -> None:
    (tmp_path / "port").write_text("8080")
    assert loaded(PORT_FILE=str(tmp_path / "port")).port == 3001


def faults_of_file(path: Path, **values: str) -> list[str]:
    rest = {name: value for name, value in NEEDED.items() if name != "API_KEY_PEPPER"}
    with pytest.raises(SettingsError) as error:
        load({**rest, "API_KEY_PEPPER_FILE": str(path), **values})
    return error.value.faults


def test_a_file_of_a_secret_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    assert faults_of_file(path) == [
        f"API_KEY_PEPPER_FILE: {path} cannot be read: No such file or directory"
    ]
    assert faults_of_file(tmp_path) == [
        f"API_KEY_PEPPER_FILE: {tmp_path} cannot be read: Is a directory"
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff" * 40, "is not UTF-8 text"),
        (b"hunter2" * 10_000, "is larger"),
        (b"hunter2\0" * 5, "contains a NUL"),
    ],
)
def test_a_file_of_no_use_is_named_and_never_shown(
    tmp_path: Path, content: bytes, fault: str
) -> None:
    (tmp_path / "pepper").write_bytes(content)
    (found,) = faults_of_file(tmp_path / "pepper")
    assert found.startswith(f"API_KEY_PEPPER_FILE: {tmp_path / 'pepper'} {fault}")
    assert "hunter2" not in found


def test_a_secret_from_a_file_is_held_to_the_same_rules(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_text("short\n")
    assert faults_of_file(tmp_path / "pepper") == ["API_KEY_PEPPER: is shorter than 32 characters"]


def test_a_secret_as_variable_and_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_text("hunter2" * 10)
    (fault,) = faults_of_file(tmp_path / "pepper", API_KEY_PEPPER=SECRETS["API_KEY_PEPPER"])
    assert fault == "API_KEY_PEPPER_FILE: API_KEY_PEPPER is set too: remove one of them"


def test_an_empty_name_of_a_file_and_an_empty_secret_beside_a_file_count_as_unset(
    tmp_path: Path,
) -> None:
    (tmp_path / "pepper").write_text("hunter2" * 10)
    assert faults_of(API_KEY_PEPPER="", API_KEY_PEPPER_FILE=" ") == ["API_KEY_PEPPER: is missing"]
    loaded(API_KEY_PEPPER=" ", API_KEY_PEPPER_FILE=str(tmp_path / "pepper"))


def test_database_only_commands_report_an_unreadable_file(tmp_path: Path) -> None:
    assert Settings(DATABASE).own_database is None
    with pytest.raises(SettingsError) as error:
        _ = Settings({"DATABASE_URL_FILE": str(tmp_path / "none")}).own_database
    assert error.value.faults[0].startswith("DATABASE_URL_FILE: ")


KEY = "0123456789abcdefghij"


@cases(
    ("secret", "fault"),
    [
        (
            f'"whsec_{KEY}"',
            "has quotes around it: remove them, because not every reader of such a file does",
        ),
        (
            f"'whsec_{KEY}'",
            "has quotes around it: remove them, because not every reader of such a file does",
        ),
        (
            f"\u201cwhsec_{KEY}\u201d",
            "has quotes around it: remove them, because not every reader of such a file does",
        ),
        (
            f"whsec_{KEY}\n{KEY}",
            "contains white space: copy the endpoint's signing secret (whsec_...) again",
        ),
        *(
            (
                f"{prefix}{KEY}",
                f"is {what} ({prefix[:3]}...): copy the signing secret (whsec_...) of the webhook endpoint",
            )
            for prefix, what in {
                "sk_live_": "a key of the provider's API, which belongs to PROVIDER_SECRET_KEY",
                "rk_test_": "a restricted key of the provider's API, which belongs to PROVIDER_SECRET_KEY",
                "pk_live_": "a publishable key of the provider",
                "we_1": "the id of an endpoint",
            }.items()
        ),
    ],
)
@cases("demo", [False, True])
def test_what_cannot_be_a_webhook_secret_is_refused_and_not_shown(
    secret: str, fault: str, *, demo: bool
) -> None:
    more = {DEMO_FLAG: "true"} if demo else {}
    faults = faults_of(PROVIDER_WEBHOOK_SECRET=secret, **more)
    assert faults == [f"PROVIDER_WEBHOOK_SECRET: {fault}"]
    assert KEY not in faults[0]


def test_each_of_several_webhook_secrets_is_checked() -> None:
    several = f'"whsec_{KEY}, sk_live_{KEY}, whsec_{KEY}"'
    assert [
        fault.split(": ")[1].split(" (")[0] for fault in faults_of(PROVIDER_WEBHOOK_SECRET=several)
    ] == [
        "has quotes around it",
        "is a key of the provider's API, which belongs to PROVIDER_SECRET_KEY",
        "has quotes around it",
    ]


@pytest.mark.parametrize(
    ("metered", "number"),
    [([""], 1), (['counts = "requests"'], 1), (["", 'counts = "requests"'], 2)],
)
def test_features_that_are_counted_need_connections(
    tmp_path: Path, metered: list[str], number: int
) -> None:
    catalog = tmp_path / "plans.toml"
    features = [
        f'[[features]]\nid = "f{place}"\ntype = "metered"\n{more}\n'
        for place, more in enumerate(metered)
    ]
    given = "".join(f"f{place} = 9\n" for place in range(len(metered)))
    catalog.write_text("".join(features) + f'[[plans]]\nid = "free"\n[plans.features]\n{given}')
    with_features = loaded(TENANTRY_PLANS=str(catalog), WORKERS="3")
    assert with_features.connections == loaded(WORKERS="3").connections + 3 * number

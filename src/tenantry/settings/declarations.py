"""Every setting, declared once: its variable, its kind, its default and its meaning.

docs/reference/configuration.md is made from the declarations and their docstrings.
"""

from pathlib import Path
from typing import Any, Final

from tenantry.common.secret import Secret
from tenantry.domain.api_keys import DEFAULT_PREFIX
from tenantry.domain.billing.state import RawBodies
from tenantry.domain.branding import DEFAULT_NAME
from tenantry.domain.product_samples import Sample
from tenantry.integrations.oidc.claims import STANDARD_AUDIENCE, TOKEN_LIFETIME
from tenantry.settings.kinds import (
    API_KEY_HEADER,
    AUDIENCES,
    CHECKS_URL,
    CLAIM,
    DATABASE_URL,
    DIRECTORIES,
    FLAG,
    IMPORTED_KEY_PATTERN,
    KEY_PREFIX,
    NOTICES,
    OAUTH_RESOURCE,
    OPERATOR_USERS,
    ORIGIN,
    OTLP_HEADERS,
    POOLER_URL,
    PRODUCT_COLOR,
    PRODUCT_DOCS_URL,
    PRODUCT_KEY_VARIABLE,
    PRODUCT_LOGO,
    PRODUCT_NAME,
    PRODUCT_SAMPLE,
    PRODUCT_SUPPORT,
    ROLE_MAP,
    TEXT,
    TEXT_WITH_PASSWORD,
    URL,
    Kind,
    check_webhook_secret,
    choice,
    number,
    read_account,
    read_key_prefix,
    read_network,
    read_notice,
    read_page_origin,
    secret,
    secrets,
    several,
)
from tenantry.settings.setting import REQUIRED, Setting, SettingValues

_HOURS_OF_A_YEAR: Final = 8760


class DeclaredSettings(SettingValues):
    """Each attribute reads and checks its variable when it is first used."""

    webhook_secrets = Setting(
        "PROVIDER_WEBHOOK_SECRET", secrets(16, check_webhook_secret), REQUIRED
    )
    """The signing secret of the provider's webhook endpoint, `whsec_...`. Several, during a
    rotation: any of them may match.
    """
    peppers = Setting("API_KEY_PEPPER", secrets(32), REQUIRED)
    """The key that API keys are hashed with. Several, during a rotation: tenantry writes with the
    first and reads with all. Keep a copy: if it is lost, every API key is invalid.
    """
    session_secret = Setting("SESSION_SECRET", secret(32), REQUIRED)
    """The key that dashboard sessions are signed and encrypted with. A new one ends all sessions.
    """

    database_url = Setting("DATABASE_URL", DATABASE_URL, None, default_text="required")
    """A PostgreSQL, 15 or newer, without tables of other programs:
    `postgresql://user:password@host:port/name`, or a `key=value` connection string. `embedded`: a
    PostgreSQL under `TENANTRY_DATA_DIR`, for development.
    """
    _pooler_url = Setting("DATABASE_POOLER_URL", POOLER_URL, None, default_text="unset: no pooler")
    """The same database through a pooler in transaction mode, for ordinary work."""
    _checks_url = Setting(
        "DATABASE_CHECKS_URL",
        CHECKS_URL,
        None,
        default_text="unset: the primary answers all checks",
    )
    """Streaming standbys that may answer checks of keys and tokens, and lists of projects, while
    they are as strict as the primary: a connection string with one host or several, the nearest
    first, not through a pooler in transaction mode. With it a process reserves [larger shares of
    rate limits](../explanation/rate-limits.md#far-from-the-database).
    """
    database_pool_size = Setting("DATABASE_POOL_SIZE", number(1, 1000), 5)
    """Connections of each process for ordinary work. It opens up to eight more: five for grouped
    queries, one for snapshots fetched from the provider, two for the job queue; and one for each of
    these: it runs jobs, standbys answer its checks, its changes wait for standbys that answer
    checks of any process, the plan catalog has metered features that are consumed, the catalog has
    one that counts requests.
    """
    data_dir = Setting("TENANTRY_DATA_DIR", Kind("text", Path), Path(".tenantry"))
    """The folder of the embedded database or of the demo."""

    host = Setting("HOST", Kind("text", str), "127.0.0.1")
    """The address to listen on. The demo always listens on 127.0.0.1."""
    port = Setting("PORT", number(0, 65535), 3001)
    """The port to listen on; 0 chooses a free one."""
    _base_url = Setting("BASE_URL", ORIGIN, None, default_text="`http://127.0.0.1:PORT`")
    """The address at which users and the provider reach the service, without a path. With https,
    browsers send cookies over https alone.
    """
    cors_origins = Setting[tuple[str, ...]](
        "CORS_ORIGINS", several(read_page_origin, "origins, or `*`"), ()
    )
    """The origins whose pages may [call the API from a browser](../how-to/browsers.md) with their
    user's credential, such as `https://app.example.com` or `capacitor://localhost`; `*` for all.
    """
    workers = Setting("WORKERS", number(1, 64), 1)
    """How many server processes `tenantry serve` runs."""
    drain_seconds = Setting("DRAIN_SECONDS", number(0, 3600), 5)
    """How many seconds a service that received SIGTERM still accepts connections, while `/readyz`
    answers 503 ([Stopping](../how-to/stopping.md)). In the demo 0.
    """
    max_connections = Setting("MAX_CONNECTIONS", number(64, 1_000_000), 8192)
    """Connections of each server process, or 256 fewer than the files that it may open if that is
    less. At the limit, the one that has been idle longest closes ([Limits](limits.md)).
    """
    run_jobs = Setting("RUN_JOBS", FLAG, default=True)
    """Whether server processes also run the background jobs (`serve --jobs`, `--no-jobs`)."""
    trusted_proxies = Setting[tuple[str, ...]](
        "TRUSTED_PROXIES", several(read_network, "IP addresses, networks"), ()
    )
    """Addresses or networks whose `X-Forwarded-For` and `X-Forwarded-Proto` the service trusts."""
    log_format = Setting("LOG_FORMAT", choice("console", "json"), "console")
    """Log lines on stderr, for people or for machines."""
    log_requests = Setting("LOG_REQUESTS", FLAG, default=False)
    """Whether to log a line for each request ([Operations](../how-to/operations.md#logs))."""
    log_requests_to = Setting[Path | None]("LOG_REQUESTS_TO", Kind("text", Path), None)
    """A file for the lines of requests, as JSON, with or without `LOG_REQUESTS`. It may be rotated.
    """
    _operator_tokens = Setting[tuple[Secret, ...]]("OPERATOR_TOKEN", secrets(32), ())
    """The bearer token of your backend, for the operator's routes ([API](http-api.md)). With
    `X-Act-As-Organization` it acts for a tenant on all others ([When a customer signs
    up](../tutorials/sign-customers-up.md)). Several different ones count at once, for a rotation.
    Unset: these routes answer 401. It must not look like an API key or a token: begin with a prefix
    of keys, have two dots, or match `IMPORTED_KEY_PATTERN`.
    """
    _operators = Setting[tuple[str, ...]]("OPERATORS", OPERATOR_USERS, ())
    """The users of `OIDC_ISSUER` who may open the [operator's pages](../how-to/operator-pages.md)
    under `/operator`: their subjects, or their verified email addresses in lower case. With
    `{tenantid}` in the issuer, each is `issuer subject`. Without an operator, these pages do not
    exist.
    """
    _operator_role_claim = Setting("OPERATOR_ROLE_CLAIM", CLAIM, None)
    """The claim that gives the role of operators, as a text or a list of texts; dots reach into
    objects. It must not be `OIDC_ROLE_CLAIM`, whose roles the administrators of tenants give.
    """
    _operator_role_name = Setting("OPERATOR_ROLE", TEXT, None)
    """The value in `OPERATOR_ROLE_CLAIM` that makes a user an operator."""

    _key_prefix = Setting("KEY_PREFIX", KEY_PREFIX, DEFAULT_PREFIX)
    """What new API keys begin with: `<prefix>_live_...` and `<prefix>_test_...`. Keys that begin
    with `svc` are always accepted ([API key format](api-key-format.md#a-prefix-of-your-own)).
    """
    _former_key_prefixes = Setting[tuple[str, ...]](
        "FORMER_KEY_PREFIXES", several(read_key_prefix, "prefixes, separated by commas"), ()
    )
    """The earlier values of `KEY_PREFIX`. Without its prefix here, such a key is rejected."""
    _api_key_header = Setting("API_KEY_HEADER", API_KEY_HEADER, None)
    """One more [header for API keys](../how-to/api-keys.md#send-keys-in-another-header), such as
    `X-API-Key`. With it, clients may also send `Authorization: Api-Key <key>`.
    """
    imported_key_pattern = Setting("IMPORTED_KEY_PATTERN", IMPORTED_KEY_PATTERN, None)
    r"""What every [imported key](../how-to/import-keys.md) matches as a whole, such as
    `[A-Za-z0-9]{8}\.[A-Za-z0-9]{32}`, while such keys are in use. Where the other system hashes a
    part of its keys, a group names it: `\d+[|](?P<secret>.+)`. Keys have at most 200 ASCII
    characters. So that matching takes at most a few milliseconds, groups are neither nested nor
    repeated, and few parts vary in length.
    """

    webhook_tolerance = Setting("PROVIDER_WEBHOOK_TOLERANCE", number(1, 86_400), 300)
    """The maximum age of a signature in seconds, and how far in the future it may be."""
    provider_secret_key = Setting("PROVIDER_SECRET_KEY", secret(), None)
    """The key of the provider's API. Its prefix names its mode (`sk_live_`, `sk_test_`, `rk_live_`,
    `rk_test_`): events of the other mode are handled and counted as unexpected, unless
    `PROVIDER_LIVEMODE` is set. Unset: checkout and portal sessions answer 501, and tenantry never
    calls the provider.
    """
    provider_api_base = Setting("PROVIDER_API_BASE", URL, "https://api.stripe.com")
    """The address of the provider's API."""
    _accounts = Setting[tuple[str, ...]](
        "PROVIDER_ACCOUNTS", several(read_account, "`acct_...` ids"), ()
    )
    """The connected accounts (Stripe Connect) whose events count like the platform's. Those of
    others are ignored.
    """
    _livemode = Setting("PROVIDER_LIVEMODE", choice("any", "live", "test"), "any")
    """Which mode's events count. `live` or `test`: events of the other mode are ignored; an event
    without a mode counts. `any`: all count, with their mode recorded.
    """
    _plans = Setting("TENANTRY_PLANS", TEXT, None, default_text="the packaged catalog")
    """The path of the [plan catalog](plan-catalog.md). The packaged one has the example plans
    `free`, `pro` and `business`.
    """
    public_plans = Setting("PUBLIC_PLANS", FLAG, default=False)
    """Whether `GET /api/v1/plans` also answers without a credential, to pages of every origin,
    cached for up to five minutes.
    """
    _subscriptions = Setting("SUBSCRIPTIONS", choice("any", "each"), "any")
    """How events of several subscriptions of one tenant count. `any`: every event changes the
    tenant. `each`: each subscription has its own state, and one of them gives the tenant its plan
    and status. After a change run `tenantry admin rebuild-tenants`.
    """
    _past_due_grace_days = Setting("PAST_DUE_GRACE_DAYS", number(0, 3650), 65)
    """How many days a past-due tenant keeps the plan's limits. The provider's retries should end
    earlier. A change counts from the tenant's next event, or a rebuild.
    """
    _checkout_reference_links = Setting("CHECKOUT_REFERENCE_LINKS", FLAG, default=False)
    """Whether a checkout session's `client_reference_id` may name the tenant if its metadata does
    not. A buyer can set it on a payment link, so it links only a tenant without a customer.
    """
    checkout_promotion_codes = Setting("CHECKOUT_PROMOTION_CODES", FLAG, default=False)
    """Whether buyers can enter a promotion code in a checkout. Create the codes at the provider."""
    checkout_tax = Setting("CHECKOUT_TAX", FLAG, default=False)
    """Whether the provider calculates the tax in a checkout, and asks for address, name and tax id.
    Needs Stripe Tax.
    """
    _parked_mail_hours = Setting("PARKED_MAIL_HOURS", number(0, _HOURS_OF_A_YEAR), 72)
    """How many hours old a failed payment or another notice may be for the owner to get a mail
    about it, if its event waited for its tenant or was fetched later.
    """
    _owner_notices = Setting[tuple[str, ...]]("OWNER_NOTICES", several(read_notice, NOTICES), ())
    """Which [billing notices](../explanation/subscriptions.md#notices) owners get by mail besides
    those of failed payments. `trial_ending` needs `customer.subscription.trial_will_end` to be
    enabled at the provider.
    """
    reconcile_hours = Setting("RECONCILE_HOURS", number(0, _HOURS_OF_A_YEAR), 24)
    """How often tenantry compares all subscriptions at the provider with the tenants, and repairs
    drift. 0: never. Needs `PROVIDER_SECRET_KEY`.
    """
    stale_tenant_hours = Setting("STALE_TENANT_HOURS", number(1, _HOURS_OF_A_YEAR), 24)
    """How many hours after the end of its paid period a tenant without an event is reported as
    stale: an event was lost, or the endpoint receives none.
    """
    _raw_bodies = Setting("RAW_BODIES", choice(*RawBodies), "all")
    """Whose raw bodies are stored: those of `all` events, of `failed` ones, which are `invalid` and
    which a later release may read, or none (`off`). The facts of every event stay in the ledger
    ([What needs a body](../how-to/billing.md#what-needs-a-body)).
    """
    raw_body_days = Setting("RAW_BODY_DAYS", number(1, 36_500), 90)
    """How many days raw bodies are kept. The ledger is kept permanently."""

    _issuer = Setting("OIDC_ISSUER", Kind("text", str, "https; http on loopback"), None)
    """The issuer, exactly as tokens name it in `iss`. With `{tenantid}`, as in Microsoft Entra ID's
    template, set `OIDC_DIRECTORIES` too.
    """
    _directories = Setting[tuple[str, ...]]("OIDC_DIRECTORIES", DIRECTORIES, ())
    """The [directories](tokens.md#several-directories) whose users are accepted: the values of
    `tid`, which replaces `{tenantid}` in the issuer. `*`: every directory of the provider.
    """
    _audiences = Setting[tuple[str, ...]]("OIDC_AUDIENCE", AUDIENCES, ())
    """The audience of access tokens for this API: a token needs one of them. Required with
    `OIDC_ISSUER`. The dashboard's sign-in asks for tokens for the first.
    """
    _audience_claim = Setting("OIDC_AUDIENCE_CLAIM", CLAIM, STANDARD_AUDIENCE)
    """The claim that holds the audience: `client_id` or `azp`, with the ids of your clients as
    `OIDC_AUDIENCE`, for providers whose access tokens have no `aud`. Tokens with one are then
    rejected.
    """
    _token_lifetime = Setting("OIDC_TOKEN_LIFETIME", number(1, 31_536_000), TOKEN_LIFETIME)
    """How many seconds may lie between `iat` and `exp` of a token, with 30 s of leeway."""
    _client_id = Setting(
        "OIDC_CLIENT_ID", Kind("text", str, "no audience, unless these are clients"), None
    )
    """The client of the dashboard's sign-in. Unset: there is none. The API rejects a token whose
    only audience in `aud` is this client: it is an ID token.
    """
    oidc_client_secret = Setting("OIDC_CLIENT_SECRET", secret(), None)
    """That client's secret. Unset: a public client, with PKCE alone."""
    _org_claim = Setting("OIDC_ORG_CLAIM", TEXT, "org_id")
    """The claim that names the tenant; dots reach into objects."""
    _role_claim = Setting("OIDC_ROLE_CLAIM", TEXT, "org_role")
    """The claim that names the role, as a text or a list of texts, of which the highest counts:
    `owner`, `admin`, `member` or a role of the plan catalog, with or without `org:` before it. Any
    other value counts as `member`.
    """
    _role_map = Setting("OIDC_ROLE_MAP", ROLE_MAP, None)
    """The provider's names of the roles, instead of those above: `Owner=owner,Writer=admin`. A role
    that is neither built in nor in the plan catalog stops the start.
    """
    email_subjects = Setting("OIDC_EMAIL_SUBJECTS", FLAG, default=False)
    """Whether user ids (`sub`) may be email addresses, as in Okta's access tokens. By default they
    are rejected.
    """
    _allow_http = Setting("OIDC_ALLOW_HTTP", FLAG, default=False)
    """Whether to accept a plain-http issuer that is not on loopback. An attacker on the network can
    then forge tokens.
    """
    _oauth_resource = Setting("OAUTH_RESOURCE", OAUTH_RESOURCE, None)
    """The address of your API for [MCP clients](../how-to/identity-providers.md#mcp-clients), such
    as `https://api.example.com/mcp`: 401s name the metadata by which they find `OIDC_ISSUER`.
    """
    tenants_per_user = Setting("TENANTS_PER_USER", number(0, 1_000_000), 20)
    """How many tenants one user may create. One that its owner deleted counts for 30 more days. 0:
    only the operator creates tenants, who may create any number.
    """

    _product_name = Setting("PRODUCT_NAME", PRODUCT_NAME, DEFAULT_NAME)
    """The name that pages, the API reference and mails show ([Your product's name, logo and
    color](../how-to/branding.md)).
    """
    _product_logo = Setting[bytes | None]("PRODUCT_LOGO", PRODUCT_LOGO, None)
    """A PNG that pages show next to the name, with sides of 16 to 1,024 pixels."""
    _product_color = Setting("PRODUCT_COLOR", PRODUCT_COLOR, None)
    """The color of buttons and links, or the nearest one with enough contrast."""
    _product_docs_url = Setting("PRODUCT_DOCS_URL", PRODUCT_DOCS_URL, None)
    """Your documentation, to which "Docs" on pages leads. tenantry's own reference is then under
    "Account API".
    """
    _product_support = Setting("PRODUCT_SUPPORT", PRODUCT_SUPPORT, None)
    """Where customers get help: a mail address, or the address of a page."""
    _product_samples = Setting[tuple[Sample, ...]]("PRODUCT_SAMPLE", PRODUCT_SAMPLE, ())
    """The path of a file with the first request to your API, in [one or several
    languages](../how-to/branding.md#your-first-request).
    """
    _product_key_variable = Setting(
        "PRODUCT_KEY_VARIABLE",
        PRODUCT_KEY_VARIABLE,
        None,
        default_text="`API_KEY` with `PRODUCT_NAME`, else `TENANTRY_API_KEY`",
    )
    """The environment variable from which the first request on pages reads the API key."""

    _smtp_url = Setting("SMTP_URL", TEXT_WITH_PASSWORD, None)
    """`smtp://user:password@host:port` (port 587 by default, STARTTLS) or `smtps://...` (port 465,
    TLS from the start). User and password are percent-encoded.
    """
    _mail_from = Setting("MAIL_FROM", Kind("text", str, "one ASCII address"), None)
    """The sender, `billing@example.com` or `Name <billing@example.com>`; required with
    `SMTP_URL`.
    """
    _allow_plaintext_smtp = Setting("SMTP_ALLOW_PLAINTEXT", FLAG, default=False)
    """Whether to send mail, and the password, to a server without TLS that is not on loopback."""

    _key_expiry_mails = Setting("KEY_EXPIRY_MAILS", FLAG, default=False)
    """Whether to [mail](../how-to/api-keys.md#mails) people about API keys that expire or are
    unused. Needs `SMTP_URL`.
    """
    _invitations = Setting("INVITATIONS", FLAG, default=False)
    """Whether owners and admins can invite users by [mail](../how-to/members.md#invite-by-mail).
    Needs `SMTP_URL`.
    """

    # OpenTelemetry's own variables
    _otlp_endpoint = Setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT", TEXT, None, default_text="unset: no traces"
    )
    """Where spans are sent to: a collector that accepts OTLP over HTTP."""
    _otlp_traces_endpoint = Setting("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", TEXT, None)
    """The same, for traces alone."""
    _otlp_headers = Setting("OTEL_EXPORTER_OTLP_HEADERS", OTLP_HEADERS, None)
    """Headers that spans are sent with. Logs do not show their values."""
    _otlp_traces_headers = Setting("OTEL_EXPORTER_OTLP_TRACES_HEADERS", OTLP_HEADERS, None)
    """The same, for traces alone."""
    _traces_exporter = Setting("OTEL_TRACES_EXPORTER", choice("otlp", "none"), None)
    """`otlp` sends spans even without an endpoint (to `http://localhost:4318`), `none` never does.
    """
    _telemetry_disabled = Setting("OTEL_SDK_DISABLED", FLAG, default=False)
    """`true` sends no spans."""


SETTINGS: Final[dict[str, Setting[Any]]] = {
    attribute: setting
    for attribute, setting in vars(DeclaredSettings).items()
    if isinstance(setting, Setting)
}
"""Every setting, in the order of the reference."""
SECRETS: Final = tuple(setting for setting in SETTINGS.values() if setting.is_secret)
VARIABLES: Final = frozenset(
    [setting.name for setting in SETTINGS.values()] + [secret.file_name for secret in SECRETS]
)
"""The variable of each setting, and those that name a secret's file."""

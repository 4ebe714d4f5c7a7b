"""Every environment variable of the service: its name, type, default, bounds and meaning, said once.

`settings.py` reads by this table, and docs/reference/configuration.md is made from it.
"""

from typing import Final

import msgspec

FILE_SUFFIX: Final = "_FILE"
_LARGEST_PORT: Final = 65535
_HOURS_OF_A_YEAR: Final = 8760
_SECRET: Final = 32
"""The least length of a secret that we ask for, in characters."""
_GIVEN: Final = 1
"""The least length of a secret that somebody else makes."""


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """One variable: any text. ``default_text`` and ``bounds`` are for people."""

    name: str
    meaning: str
    default_text: str = "unset"
    bounds: str = ""
    secret: bool = False
    """Whether it holds a secret; such a one may be in a file that ``NAME_FILE`` names."""

    @property
    def file_name(self) -> str:
        """The variable that names the file with the value."""
        return self.name + FILE_SUFFIX

    def type_said(self) -> str:
        """Of which type it is."""
        return "secret" if self.secret else "text"

    def default_said(self) -> str:
        """What counts where it is unset."""
        return self.default_text

    def bounds_said(self) -> str:
        """Which values it may have."""
        return self.bounds


class Number(Variable, frozen=True, kw_only=True):
    """A whole number."""

    default: int
    least: int
    most: int

    def type_said(self) -> str:
        return "number"

    def default_said(self) -> str:
        return str(self.default)

    def bounds_said(self) -> str:
        return f"{self.least} to {self.most}"


class Flag(Variable, frozen=True, kw_only=True):
    """True or false."""

    default: bool

    def type_said(self) -> str:
        return "flag"

    def default_said(self) -> str:
        return str(self.default).lower()

    def bounds_said(self) -> str:
        return "true, false, 1, 0"


class Choice(Variable, frozen=True, kw_only=True):
    """One of several words."""

    default: str
    choices: tuple[str, ...]

    def type_said(self) -> str:
        return "choice"

    def default_said(self) -> str:
        return f"`{self.default}`"

    def bounds_said(self) -> str:
        return ", ".join(f"`{choice}`" for choice in self.choices)


class Word(Variable, frozen=True, kw_only=True):
    """A text with a default."""

    default: str

    def default_said(self) -> str:
        return f"`{self.default}`"


class Address(Variable, frozen=True, kw_only=True):
    """An http or https address. ``default`` may have ``PORT`` in it, which is that variable's value."""

    default: str
    bounds: str = "http or https"

    def type_said(self) -> str:
        return "address"

    def default_said(self) -> str:
        return f"`{self.default}`"


class SecretText(Variable, frozen=True, kw_only=True):
    """A secret. ``several``: it may be a list, separated by commas, and must not be missing."""

    shortest: int
    several: bool = False
    secret: bool = True

    def type_said(self) -> str:
        return "secrets" if self.several else "secret"

    def bounds_said(self) -> str:
        least = f"at least {self.shortest} characters"
        return "" if self.shortest == _GIVEN else f"each {least}" if self.several else least


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Variables that belong together."""

    title: str
    about: str
    variables: tuple[Variable, ...]


PROVIDER_WEBHOOK_SECRET: Final = SecretText(
    name="PROVIDER_WEBHOOK_SECRET",
    default_text="required",
    shortest=16,
    several=True,
    meaning="The signing secret of the provider's webhook endpoint, `whsec_...`. Several, separated by commas, during "
    "a rotation: any may match.",
)
API_KEY_PEPPER: Final = SecretText(
    name="API_KEY_PEPPER",
    default_text="required",
    shortest=_SECRET,
    several=True,
    meaning="The key under which API keys are hashed. Several, separated by commas, during a rotation: the first one "
    "writes, all of them read. Without it every API key is worthless, so keep a copy.",
)
SESSION_SECRET: Final = SecretText(
    name="SESSION_SECRET",
    default_text="required",
    shortest=_SECRET,
    meaning="The key under which sessions of the dashboard are made and kept. Another one ends all of them, and "
    "nothing else.",
)

DATABASE_URL: Final = Variable(
    name="DATABASE_URL",
    secret=True,
    default_text="required",
    meaning="A PostgreSQL, 15 or newer: `postgresql://user:password@host:port/name`, or a `key=value` connection "
    "string. `embedded`: a PostgreSQL under `TENANTRY_DATA_DIR` that the command starts, for development. Only "
    "`tenantry demo` does without.",
)
EMBEDDED: Final = "embedded"
"""The `DATABASE_URL` of a PostgreSQL that the command itself starts."""
DATABASE_POOLER_URL: Final = Variable(
    name="DATABASE_POOLER_URL",
    secret=True,
    default_text="unset: no pooler",
    bounds="needs `DATABASE_URL`",
    meaning="The same database by way of a connection pooler in transaction mode, for ordinary work; `DATABASE_URL` "
    "must lead past the pooler.",
)
DATABASE_POOL_SIZE: Final = Number(
    name="DATABASE_POOL_SIZE",
    default=5,
    least=1,
    most=1000,
    meaning="Connections of each process for ordinary work. Each process uses up to eight more: five for grouped "
    "paths, one for what is fetched from the provider, two for the job queue.",
)
TENANTRY_DATA_DIR: Final = Word(
    name="TENANTRY_DATA_DIR", default=".tenantry", meaning="The folder of the embedded database and of the demo."
)

HOST: Final = Word(
    name="HOST", default="127.0.0.1", bounds="the demo: loopback only", meaning="The address to listen on."
)
PORT: Final = Number(
    name="PORT", default=3001, least=0, most=_LARGEST_PORT, meaning="The port to listen on; 0 takes a free one."
)
BASE_URL: Final = Address(
    name="BASE_URL",
    default="http://127.0.0.1:PORT",
    bounds="http or https, a host, maybe a port",
    meaning="Where people and the provider reach the service: people are led back there from the identity provider, "
    "and from checkout and portal by default. With https, cookies are sent by https alone. Capitals and the scheme's "
    "own port make no difference. A path in front of the service's own is not supported.",
)
WORKERS: Final = Number(name="WORKERS", default=1, least=1, most=64, meaning="Server processes.")
DRAIN_SECONDS: Final = Number(
    name="DRAIN_SECONDS",
    default=5,
    least=0,
    most=3600,
    meaning="How long a service that got SIGTERM goes on taking connections, while `/readyz` says 503: as long as a "
    "load balancer needs to notice; in the demo 0. [stopping.md](../stopping.md) says what follows from it.",
)
MAX_CONNECTIONS: Final = Number(
    name="MAX_CONNECTIONS",
    default=8192,
    least=64,
    most=1_000_000,
    meaning="Connections that each server process keeps open; 256 fewer than the files that it may open, where that is "
    "less. Whoever has been waited for longest makes room for others. [limits.md](../limits.md) has all limits.",
)
RUN_JOBS: Final = Flag(
    name="RUN_JOBS",
    default=True,
    meaning="Whether server processes also run the background jobs (`serve --jobs`, `--no-jobs`).",
)
TRUSTED_PROXIES: Final = Variable(
    name="TRUSTED_PROXIES",
    default_text="none",
    bounds="IP addresses, networks",
    meaning="Addresses or networks, separated by commas, whose `X-Forwarded-For` and `X-Forwarded-Proto` count.",
)
LOG_FORMAT: Final = Choice(
    name="LOG_FORMAT",
    default="console",
    choices=("console", "json"),
    meaning="Log lines on stderr, for people or machines.",
)
LOG_REQUESTS: Final = Flag(
    name="LOG_REQUESTS",
    default=False,
    meaning="A line in the log for each request ([operations.md](../operations.md#logs)).",
)
OPERATOR_TOKEN: Final = SecretText(
    name="OPERATOR_TOKEN",
    shortest=_SECRET,
    meaning="The bearer credential of a team's own backend, for `PUT`, `DELETE` and export of tenants. Unset: these "
    "answer 401.",
)

PROVIDER_WEBHOOK_TOLERANCE: Final = Number(
    name="PROVIDER_WEBHOOK_TOLERANCE",
    default=300,
    least=1,
    most=86_400,
    meaning="How old, or how far in the future, a signature may be, in seconds.",
)
PROVIDER_SECRET_KEY: Final = SecretText(
    name="PROVIDER_SECRET_KEY",
    shortest=_GIVEN,
    meaning="The key of the provider's API: for checkout and portal sessions, for settling what events leave open, "
    "and for comparing tenants with the provider. It begins with its mode (`sk_live_`, `sk_test_`, `rk_live_`, "
    "`rk_test_`): events of the other mode are handled, and counted as unexpected, unless `PROVIDER_LIVEMODE` is "
    "set. Unset: sessions answer 501, the "
    "provider is never asked, all else works.",
)
PROVIDER_ACCOUNTS: Final = Variable(
    name="PROVIDER_ACCOUNTS",
    default_text="none",
    bounds="`acct_...` ids",
    meaning="The connected accounts (Stripe Connect), separated by commas, whose events count as the platform's own. "
    "An event of another connected account is ignored.",
)
PROVIDER_LIVEMODE: Final = Choice(
    name="PROVIDER_LIVEMODE",
    default="any",
    choices=("live", "test", "any"),
    meaning="Which mode's events count. `live` or `test`: an event of the other mode is ignored; one that does not say "
    "its mode counts. `any`: the mode is recorded and counted, and never a filter.",
)
PROVIDER_API_BASE: Final = Address(
    name="PROVIDER_API_BASE", default="https://api.stripe.com", meaning="Where the provider's API is."
)
TENANTRY_PLANS: Final = Variable(
    name="TENANTRY_PLANS", default_text="the package's own", meaning="The path of the plan catalog."
)
SUBSCRIPTIONS: Final = Choice(
    name="SUBSCRIPTIONS",
    default="any",
    choices=("any", "newest"),
    meaning="Which of several subscriptions of one tenant count. `any`: every event, whichever subscription it is "
    "about. `newest`: the end of an older one changes nothing while a newer one lives.",
)
CHECKOUT_REFERENCE_LINKS: Final = Flag(
    name="CHECKOUT_REFERENCE_LINKS",
    default=False,
    meaning="Whether a checkout session's `client_reference_id` may name the tenant where its metadata does not. A "
    "buyer can set it on a payment link.",
)
PARKED_MAIL_HOURS: Final = Number(
    name="PARKED_MAIL_HOURS",
    default=72,
    least=0,
    most=_HOURS_OF_A_YEAR,
    meaning="A failed payment that waited for its tenant to become known still mails the owner if it is no older than "
    "this.",
)
RECONCILE_HOURS: Final = Number(
    name="RECONCILE_HOURS",
    default=24,
    least=0,
    most=_HOURS_OF_A_YEAR,
    meaning="How often each linked tenant is compared with the provider, and repaired where it had drifted. 0: never. "
    "Needs `PROVIDER_SECRET_KEY`.",
)
PERIOD_NEWS_HOURS: Final = Number(
    name="PERIOD_NEWS_HOURS",
    default=24,
    least=1,
    most=_HOURS_OF_A_YEAR,
    meaning="How long after the end of its paid period a tenant may be without news before it is reported: an event "
    "was lost, or the endpoint is dead.",
)
RAW_BODY_DAYS: Final = Number(
    name="RAW_BODY_DAYS",
    default=90,
    least=1,
    most=36_500,
    meaning="How many days the raw bodies of events are kept. What folding, replay and explaining need is in the "
    "ledger for good, and does without them.",
)

OIDC_ISSUER: Final = Variable(
    name="OIDC_ISSUER", bounds="https; http on loopback", meaning="The issuer, exactly as tokens name it in `iss`."
)
OIDC_AUDIENCE: Final = Variable(
    name="OIDC_AUDIENCE", meaning="The audience of access tokens for this API; required with `OIDC_ISSUER`."
)
OIDC_CLIENT_ID: Final = Variable(
    name="OIDC_CLIENT_ID",
    bounds="differs from `OIDC_AUDIENCE`",
    meaning="The client that people sign in by to the dashboard; unset: nobody can. A token for it alone is an ID "
    "token, and refused by the API.",
)
OIDC_CLIENT_SECRET: Final = SecretText(
    name="OIDC_CLIENT_SECRET", shortest=_GIVEN, meaning="That client's secret. Unset: a public client, by PKCE alone."
)
OIDC_ORG_CLAIM: Final = Word(
    name="OIDC_ORG_CLAIM", default="org_id", meaning="The claim that names the tenant; dots reach into objects."
)
OIDC_ROLE_CLAIM: Final = Word(
    name="OIDC_ROLE_CLAIM", default="org_role", meaning="The claim that names the role: `owner`, `admin`, `member`."
)
OIDC_EMAIL_SUBJECTS: Final = Flag(
    name="OIDC_EMAIL_SUBJECTS",
    default=False,
    meaning="Whether the provider's user ids (`sub`) may be e-mail addresses, as in Okta's access tokens. By default "
    "an address is refused as a user id: it is almost always a mistake.",
)
TENANTS_PER_USER: Final = Number(
    name="TENANTS_PER_USER",
    default=20,
    least=0,
    most=1_000_000,
    meaning="How many tenants one user may create; ended ones do not count. 0: users create none. The operator may "
    "create any number.",
)
OIDC_ALLOW_HTTP: Final = Flag(
    name="OIDC_ALLOW_HTTP",
    default=False,
    meaning="Accept a plain-http issuer that is not on loopback. Its keys can be forged on the way.",
)

SMTP_URL: Final = Variable(
    name="SMTP_URL",
    secret=True,
    meaning="`smtp://user:password@host:port` (port 587 unless given; changes to TLS) or `smtps://...` (465; begins "
    "in TLS). User and password percent-encoded, and optional together.",
)
MAIL_FROM: Final = Variable(
    name="MAIL_FROM",
    bounds="one ASCII address",
    meaning="The sender, `billing@example.com` or `Name <billing@example.com>`; required with `SMTP_URL`.",
)
SMTP_ALLOW_PLAINTEXT: Final = Flag(
    name="SMTP_ALLOW_PLAINTEXT",
    default=False,
    meaning="Hand mail, and the password, to a server without TLS that is not on loopback.",
)

OTEL_EXPORTER_OTLP_ENDPOINT: Final = Variable(
    name="OTEL_EXPORTER_OTLP_ENDPOINT",
    default_text="unset: no traces",
    meaning="Where spans are sent to: a collector that takes OTLP over HTTP.",
)
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: Final = Variable(
    name="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", meaning="The same, for traces alone."
)
OTEL_EXPORTER_OTLP_HEADERS: Final = Variable(
    name="OTEL_EXPORTER_OTLP_HEADERS",
    bounds="`name=value`, separated by commas",
    meaning="Headers that they are sent with; their values are kept out of logs like secrets.",
)
OTEL_EXPORTER_OTLP_TRACES_HEADERS: Final = Variable(
    name="OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    bounds="`name=value`, separated by commas",
    meaning="The same, for traces alone.",
)
OTEL_TRACES_EXPORTER: Final = Variable(
    name="OTEL_TRACES_EXPORTER",
    bounds="`otlp`, `none`",
    meaning="`otlp` sends them also without an endpoint (to `http://localhost:4318`), `none` never. Unset: they are "
    "sent where there is an endpoint.",
)
OTEL_SDK_DISABLED: Final = Flag(name="OTEL_SDK_DISABLED", default=False, meaning="`true` sends none.")

SECTIONS: Final = (
    Section(
        title="Required",
        about="A secret must also be none that others have: not beginning with `changeme`, `change-me`, `change_me`, "
        "`password`, `example`, `your-` or `your_` (after `whsec_`), and of more than three different characters. "
        "`openssl rand -hex 32` makes a good one.",
        variables=(PROVIDER_WEBHOOK_SECRET, API_KEY_PEPPER, SESSION_SECRET),
    ),
    Section(
        title="Database",
        about="Statements end after 4 s; this is sent as a connection option. Poolers: "
        "[configuration.md](../configuration.md#with-a-pooler).",
        variables=(DATABASE_URL, DATABASE_POOLER_URL, DATABASE_POOL_SIZE, TENANTRY_DATA_DIR),
    ),
    Section(
        title="Server",
        about="",
        variables=(
            HOST, PORT, BASE_URL, WORKERS, DRAIN_SECONDS, MAX_CONNECTIONS, RUN_JOBS, TRUSTED_PROXIES, LOG_FORMAT,
            LOG_REQUESTS, OPERATOR_TOKEN,
        ),
    ),
    Section(
        title="Payment provider",
        about="The plan catalog's form: [configuration.md](../configuration.md#plan-catalog).",
        variables=(
            PROVIDER_WEBHOOK_TOLERANCE, PROVIDER_SECRET_KEY, PROVIDER_API_BASE, PROVIDER_ACCOUNTS, PROVIDER_LIVEMODE,
            TENANTRY_PLANS, SUBSCRIPTIONS, CHECKOUT_REFERENCE_LINKS, PARKED_MAIL_HOURS, RECONCILE_HOURS,
            PERIOD_NEWS_HOURS, RAW_BODY_DAYS,
        ),
    ),
    Section(
        title="Identity provider",
        about="Without `OIDC_ISSUER` bearer tokens are refused with 401, and API keys work. How people come in: "
        "[tokens.md](../tokens.md), [dashboard.md](../dashboard.md#setting-up-the-sign-in).",
        variables=(
            OIDC_ISSUER, OIDC_AUDIENCE, OIDC_CLIENT_ID, OIDC_CLIENT_SECRET, OIDC_ORG_CLAIM, OIDC_ROLE_CLAIM,
            OIDC_EMAIL_SUBJECTS, OIDC_ALLOW_HTTP, TENANTS_PER_USER,
        ),
    ),
    Section(
        title="Mail",
        about="Without `SMTP_URL` mail stays queued and goes out when it is set.",
        variables=(SMTP_URL, MAIL_FROM, SMTP_ALLOW_PLAINTEXT),
    ),
    Section(
        title="Traces",
        about="Off unless OpenTelemetry's own variables ask for them ([tracing.md](../tracing.md)). Its packages read "
        "others themselves.",
        variables=(
            OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS,
            OTEL_EXPORTER_OTLP_TRACES_HEADERS, OTEL_TRACES_EXPORTER, OTEL_SDK_DISABLED,
        ),
    ),
)  # fmt: skip

ALL: Final = tuple(variable for section in SECTIONS for variable in section.variables)
SECRETS: Final = tuple(variable for variable in ALL if variable.secret)

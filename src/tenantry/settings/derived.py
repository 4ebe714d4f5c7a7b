"""The settings of a deployment: those that are declared, and what follows from several of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import psycopg

from tenantry.auth.credentials import TOKEN_DOTS, CredentialFinder
from tenantry.common.secret import Secret
from tenantry.domain.api_keys import KeyFormat
from tenantry.domain.billing.state import BillingPolicy, RawBodies, SubscriptionRule
from tenantry.domain.branding import Branding, accent_of
from tenantry.domain.invitation_links import InvitationLinks
from tenantry.domain.issuers import ANY_DIRECTORY, DIRECTORY, Issuers
from tenantry.domain.operators import OperatorRole, Operators, operators_of
from tenantry.domain.owner_mails import OwnerNotice
from tenantry.domain.plans import Catalog, CatalogError, parse_catalog
from tenantry.integrations.http_client import is_secure
from tenantry.integrations.oidc.claims import OidcConfig, unmapped_roles
from tenantry.integrations.smtp import SmtpConfig, parse_smtp_url
from tenantry.integrations.stripe.client import mode_of_key
from tenantry.server.protected_resource import ProtectedResource
from tenantry.settings.declarations import SETTINGS, DeclaredSettings
from tenantry.settings.setting import SettingsError, reject, secret_in

OTHER_CONNECTIONS: Final = 8
"""Connections of each process beside the pool: five for grouped paths, one for fetched snapshots,
two for jobs.
"""
DEMO_PEOPLE: Final = "TENANTRY_DEMO_PEOPLE"
"""The users on the demo's sign-in page, as `sub=Name`, separated by semicolons."""
DEMO_PAGES: Final = "TENANTRY_DEMO_PAGES"
"""The demo's own pages on other ports, as `Label=address`, separated by semicolons."""
DEMO_COMMAND: Final = "TENANTRY_DEMO_COMMAND"
"""The path of the command, for the commands that pages show."""
_PLACEHOLDER_SENDER: Final = "sender@localhost"
_NO_SIGN_IN: Final = "needs OIDC_ISSUER and OIDC_CLIENT_ID, with which operators sign in"
_DAY: Final = 86_400
_COMPOSED: Final = (
    "catalog",
    "billing",
    "issuers",
    "oidc",
    "protected_resource",
    "operators",
    "operator_tokens",
    "smtp",
    "invitation_links",
    "key_expiry_mails",
    "traces",
    "base_url",
    "database_pooler_url",
    "database_checks_url",
)
_BILLING: Final = (
    "catalog",
    "_accounts",
    "_livemode",
    "_subscriptions",
    "_checkout_reference_links",
    "_parked_mail_hours",
    "_owner_notices",
    "_raw_bodies",
    "provider_secret_key",
    "provider_api_base",
    "stale_tenant_hours",
)


class Settings(DeclaredSettings):
    """The settings of a deployment. An attribute reads and checks its variable when it is first
    used.

    The ``load`` functions check all that a process needs before anything starts.
    """

    @cached_property
    def base_url(self) -> str:
        """The address of the service, without a slash at the end."""
        return self._base_url or f"http://127.0.0.1:{self.port}"

    @cached_property
    def own_database(self) -> str | None:
        """The connection string of the service's database; None for the embedded one, the default
        of the demo alone.
        """
        setting = Settings.database_url
        is_missing = setting.text(self.values) is None and not self.demo
        expected = "the address of a PostgreSQL, or `embedded` for one that this command starts"
        reject({f"{setting.name}: is missing: {expected}": is_missing})
        return self.database_url

    @cached_property
    def shared_database(self) -> str:
        """The connection string of a database that another process runs."""
        setting = Settings.database_url
        reject({f"{setting.name}: is missing": setting.text(self.values) is None})
        if self.database_url is None:
            fault = "must be the address of the service's database, not `embedded`"
            raise SettingsError([f"{setting.name}: {fault}"])
        return self.database_url

    @cached_property
    def database_pooler_url(self) -> str | None:
        """The connection string of the pooler."""
        fault = "DATABASE_POOLER_URL: needs DATABASE_URL too, which bypasses the pooler"
        reject({fault: self._pooler_url is not None and self.database_url is None})
        return self._pooler_url

    @cached_property
    def database_checks_url(self) -> str | None:
        """The connection string of the standbys that may answer checks."""
        fault = "DATABASE_CHECKS_URL: needs DATABASE_URL too, the address of the primary"
        reject({fault: self._checks_url is not None and self.database_url is None})
        return self._checks_url

    @cached_property
    def catalog(self) -> Catalog:
        """The plan catalog in the file that a setting names, or the one that the package
        contains.
        """
        path = self._plans
        packaged = resources.files("tenantry").joinpath("plans.toml")
        file = packaged if path is None else Path(path)
        folder = Path(path or "").parent
        try:
            text = file.read_text("utf-8")
            return parse_catalog(text, read_file=lambda name: secret_in(str(folder / name)))
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError([f"TENANTRY_PLANS: {path} cannot be read: {error}"]) from error
        except CatalogError as error:
            raise SettingsError([f"TENANTRY_PLANS: {fault}" for fault in error.faults]) from error

    @cached_property
    def billing(self) -> BillingPolicy:
        """The rules that the fold of events follows."""
        chosen = {"live": True, "test": False}.get(self._livemode)
        of_key = mode_of_key(self.provider_secret_key or Secret(""))
        return BillingPolicy(
            catalog=self.catalog,
            subscriptions=SubscriptionRule(self._subscriptions),
            past_due_grace=self._past_due_grace_days * _DAY,
            checkout_reference_links=self._checkout_reference_links,
            parked_mail_hours=self._parked_mail_hours,
            livemode=of_key if chosen is None else chosen,
            ignores_other_mode=chosen is not None,
            accounts=frozenset(self._accounts),
            notices=frozenset(map(OwnerNotice, self._owner_notices)),
            raw_bodies=RawBodies(self._raw_bodies),
            asks_provider=self.provider_secret_key is not None,
        )

    @cached_property
    def key_format(self) -> KeyFormat:
        """How API keys begin."""
        return KeyFormat(self._key_prefix, self._former_key_prefixes)

    @cached_property
    def credentials(self) -> CredentialFinder:
        """Where a request's credential is, and what it looks like."""
        return CredentialFinder(
            self.key_format,
            self._api_key_header,
            self.imported_key_pattern,
            self.trusted_proxies,
        )

    @cached_property
    def operator_tokens(self) -> tuple[Secret, ...]:
        """The tokens of the operator. By its form, none of them can be another credential."""
        tokens = [token.reveal().encode() for token in self._operator_tokens]
        begins = "begins with a prefix of API keys"
        dots = "has two dots, as users' tokens do"
        matches = "matches IMPORTED_KEY_PATTERN, as an API key may"
        is_other = {
            begins: any(token.startswith(self.key_format.credential_starts) for token in tokens),
            dots: any(token.count(b".") == TOKEN_DOTS for token in tokens),
            matches: any(map(self.credentials.may_be_imported, tokens)),
        }
        reject(
            {
                "OPERATOR_TOKEN: has two equal tokens: leave one out": len({*tokens}) < len(tokens),
                **{
                    f"OPERATOR_TOKEN: {why}: choose another token": is_so
                    for why, is_so in is_other.items()
                },
            }
        )
        return self._operator_tokens

    @property
    def follows_seats(self) -> bool:
        """Whether seats at the provider follow the members of tenants."""
        return self.provider_secret_key is not None and self.billing.catalog.has_member_seats

    @cached_property
    def issuers(self) -> Issuers | None:
        """The issuers whose users are members."""
        directories = self._directories
        is_template = DIRECTORY in (self._issuer or "")
        missing = f"is missing; OIDC_ISSUER contains {DIRECTORY}, so list the directories (`tid`) that are accepted"
        needless = f"needs an OIDC_ISSUER that contains {DIRECTORY}"
        reject({f"OIDC_DIRECTORIES: {missing}": is_template and not directories})
        reject({f"OIDC_DIRECTORIES: {needless}": directories and not is_template})
        has_more = ANY_DIRECTORY in directories and len(directories) > 1
        ambiguous = "`*` accepts every directory: list ids, or `*` alone"
        reject({f"OIDC_DIRECTORIES: {ambiguous}": has_more})
        return None if self._issuer is None else Issuers(self._issuer, directories)

    @cached_property
    def oidc(self) -> OidcConfig | None:
        """The trusted identity provider, if there is one."""
        issuers = self.issuers
        if issuers is None:
            return None
        no_audience = "OIDC_AUDIENCE: is missing; it is the audience of access tokens for this API"
        insecure = (
            "OIDC_ISSUER: must be https (plain http only on loopback, or with OIDC_ALLOW_HTTP=true)"
        )
        is_allowed = is_secure(issuers.name, allow_http=self._allow_http)
        reject({no_audience: not self._audiences, insecure: not is_allowed})
        roles = self.catalog.roles
        role_map = self._role_map or unmapped_roles(roles)
        reject(
            {
                f"OIDC_ROLE_MAP: {ours!r} is none of {', '.join(role.id for role in roles)}": True
                for ours in role_map.values()
                if ours not in roles
            }
        )
        return OidcConfig(
            issuers=issuers,
            audiences=self._audiences,
            audience_claim=self._audience_claim,
            client_id=self._client_id,
            org_claim=self._org_claim,
            role_claim=self._role_claim,
            role_map=role_map,
            roles=roles,
            token_lifetime=self._token_lifetime,
            allow_http=self._allow_http,
            operator_role=self._operator_role,
        )

    @cached_property
    def protected_resource(self) -> ProtectedResource | None:
        """How OAuth clients find the identity provider, where that is set up."""
        resource, issuers = self._oauth_resource, self.issuers
        if resource is None:
            return None
        if issuers is None:
            raise SettingsError(["OAUTH_RESOURCE: needs OIDC_ISSUER, which its metadata names"])
        insecure = "OAUTH_RESOURCE: must be https (plain http only on loopback)"
        reject({insecure: not is_secure(resource)})
        servers = issuers.known or [issuers.any_directory]
        return ProtectedResource(resource, servers, [one.id for one in self.catalog.scopes])

    @property
    def _operator_role(self) -> OperatorRole | None:
        claim, name = self._operator_role_claim, self._operator_role_name
        return OperatorRole(claim, name) if claim and name else None

    @cached_property
    def operators(self) -> Operators:
        """The users who may open the operator's pages."""
        named = self._operators
        issuers = self.issuers or Issuers("")
        has_sign_in = self.issuers is not None and self._client_id is not None
        faults = [_operator_fault(each, issuers) for each in named]
        reject(
            {
                f"OPERATORS: {_NO_SIGN_IN}": named and not has_sign_in,
                f"OPERATOR_ROLE_CLAIM: {_NO_SIGN_IN}": self._operator_role_claim
                and not has_sign_in,
                **self._faults_of_operator_role(issuers),
                **{f"OPERATORS: {fault}": fault for fault in faults},
            }
        )
        return operators_of(named, issuers.only, self._operator_role)

    def _faults_of_operator_role(self, issuers: Issuers) -> dict[str, object]:
        """Return the faults that the role of operators may have, each with whether it is there."""
        claim, name = self._operator_role_claim, self._operator_role_name
        alone = "OPERATOR_ROLE_CLAIM: set it together with OPERATOR_ROLE"
        of_tenants = (
            "OPERATOR_ROLE_CLAIM: is OIDC_ROLE_CLAIM, whose roles the administrators of tenants give: use another "
            "claim"
        )
        of_directories = (
            f"OPERATOR_ROLE: administrators of each directory could give it, as OIDC_ISSUER contains {DIRECTORY}: "
            "use OPERATORS"
        )
        return {
            alone: (claim is None) != (name is None),
            of_tenants: claim == self._role_claim,
            of_directories: claim and issuers.is_template,
        }

    @cached_property
    def smtp(self) -> SmtpConfig | None:
        """The mail server and the sender, if there is one."""
        if self._smtp_url is None:
            return None
        read = partial(parse_smtp_url, self._smtp_url, allow_plaintext=self._allow_plaintext_smtp)
        with _fault_of("SMTP_URL"):
            read(_PLACEHOLDER_SENDER)
        if self._mail_from is None:
            raise SettingsError(
                ["MAIL_FROM: is missing; mail needs a sender where SMTP_URL is set"]
            )
        with _fault_of("MAIL_FROM"):
            return read(self._mail_from)

    @cached_property
    def branding(self) -> Branding:
        """What pages and mails show of the product."""
        color = self._product_color
        accent = None if color is None else accent_of(color)
        return Branding(
            self._product_name,
            color,
            accent,
            self._product_logo,
            docs_url=self._product_docs_url,
            support=self._product_support,
            samples=self._product_samples,
            variable=self._product_key_variable,
        )

    @cached_property
    def invitation_links(self) -> InvitationLinks | None:
        """What makes the links of invitations by mail, if these are enabled."""
        fault = "INVITATIONS: needs SMTP_URL, which sends the mails"
        reject({fault: self._invitations and self._smtp_url is None})
        return InvitationLinks(self.peppers, self.base_url) if self._invitations else None

    @cached_property
    def key_expiry_mails(self) -> bool:
        """Whether makers and owners get reminders of API keys."""
        fault = "KEY_EXPIRY_MAILS: needs SMTP_URL, which sends the mails"
        reject({fault: self._key_expiry_mails and self._smtp_url is None})
        return self._key_expiry_mails

    @cached_property
    def traces(self) -> bool:
        """Whether OpenTelemetry's variables ask for traces."""
        if self._telemetry_disabled:
            return False
        if self._traces_exporter is None:
            return bool(self._otlp_endpoint or self._otlp_traces_endpoint)
        return self._traces_exporter == "otlp"

    @property
    def demo_people(self) -> tuple[tuple[str, str], ...]:
        """The users that the demo's sign-in page offers: subject and name."""
        return _pairs(self.values.get(DEMO_PEOPLE, "")) if self.demo else ()

    @property
    def demo_pages(self) -> tuple[tuple[str, str], ...]:
        """The demo's own pages: label and address."""
        return _pairs(self.values.get(DEMO_PAGES, "")) if self.demo else ()

    @property
    def command(self) -> str:
        """The command, as pages show it."""
        return self.values.get(DEMO_COMMAND, "tenantry") if self.demo else "tenantry"

    @property
    def connections(self) -> int:
        """How many connections to the primary itself all processes of ``serve`` may open
        together.
        """
        ordinary = 0 if self.database_pooler_url else self.database_pool_size
        listening = 1 if self.run_jobs else 0  # for new jobs
        # positions of the log, and changes that wait until standbys have them
        standbys = 0 if self.database_checks_url is None else 2
        others = OTHER_CONNECTIONS + self._counting + listening + standbys
        return self.workers * (ordinary + others)

    @property
    def _counting(self) -> int:
        """How many connections of a process count the use of features: one for the features that
        are consumed, and one for a quota of requests.
        """
        features = self.catalog.features.values()
        return len({feature.counts for feature in features if feature.type == "metered"})

    def named_secrets(self) -> list[tuple[str, Secret]]:
        """The secrets that grant access, each with its variable."""
        found = list[tuple[str, Secret]]()
        for attribute, setting in SETTINGS.items():
            if setting.kind.name == "secrets":
                found += [(setting.name, each) for each in getattr(self, attribute)]
            elif setting.kind.name == "secret" and (value := getattr(self, attribute)):
                found.append((setting.name, value))
        return found

    def secrets(self) -> list[Secret]:
        """Every secret, so that logs can hide it."""
        found = [secret for _, secret in self.named_secrets()]
        if self.smtp is not None and self.smtp.password is not None:
            found.append(self.smtp.password)
        for address in filter(None, (self.database_url, self._pooler_url, self._checks_url)):
            found += _database_password(address)
        for headers in filter(None, (self._otlp_headers, self._otlp_traces_headers)):
            found += _header_credentials(headers)
        return found


@contextmanager
def _fault_of(name: str) -> Iterator[None]:
    """Raise a `ValueError` of the block as a fault of this setting."""
    try:
        yield
    except ValueError as error:
        raise SettingsError([f"{name}: {error}"]) from error


def load(values: Mapping[str, str]) -> Settings:
    """Read and check every setting. Raises `SettingsError`.

    The demo accepts weak secrets, but none may be missing.
    """
    return Settings(values).check(("own_database", *SETTINGS, *_COMPOSED))


def load_for_admin(values: Mapping[str, str], *, needs_pepper: bool) -> Settings:
    """Read and check the settings of the operator commands that use the database. Raises
    `SettingsError`.
    """
    needed = (
        "database_url",
        "data_dir",
        *_BILLING,
        "billing",
        "issuers",
        "email_subjects",
        "key_format",
    )
    of_keys = ("peppers", "imported_key_pattern") if needs_pepper else ()
    return Settings(values).check((*needed, *of_keys))


def load_for_authentication(values: Mapping[str, str]) -> Settings:
    """Read and check the settings of an application that authenticates in its process. Raises
    `SettingsError`.
    """
    needed = (
        "shared_database",
        "database_pooler_url",
        "database_checks_url",
        "database_pool_size",
        "catalog",
        "peppers",
        "oidc",
        "protected_resource",
        "credentials",
    )
    return Settings(values).check(needed)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = (entry.partition("=") for entry in text.split(";") if entry)
    return tuple((first, second) for first, _, second in pairs)


def _database_password(conninfo: str) -> list[Secret]:
    password = psycopg.conninfo.conninfo_to_dict(conninfo).get("password")
    return [Secret(str(password))] if password else []


def _header_credentials(headers: str) -> list[Secret]:
    """Return the values of headers, and the credentials in them without their scheme."""
    values = [unquote(pair.partition("=")[2].strip()) for pair in headers.split(",")]
    credentials = [value.rpartition(" ")[2] for value in values]
    return [Secret(text) for text in dict.fromkeys((*values, *credentials)) if text]


def _operator_fault(entry: str, issuers: Issuers) -> str:
    """Return why an entry of OPERATORS names no user of the issuers; empty if it does."""
    issuer, _, subject = entry.rpartition(" ")
    if issuers.is_template and not (subject and issuers.trusts(issuer)):
        return (
            f"{entry!r} must be `issuer subject`, with one of the issuers that OIDC_ISSUER accepts"
        )
    return f"{entry!r} has a blank" if issuer and not issuers.is_template else ""

"""The composition root: `build_app` and `run_jobs` build every part and connect them."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final, cast

from litestar import Litestar
from prometheus_client import Metric

from tenantry import __version__
from tenantry.accounts.members import MemberService, MembershipService
from tenantry.accounts.overview import OverviewService
from tenantry.accounts.owner_addresses import OwnerConfirmations, owner_address_writes
from tenantry.accounts.projects import ProjectService
from tenantry.accounts.tenant_directory import TenantDirectory
from tenantry.accounts.tenants import TenantService
from tenantry.api import auth, projects, webhooks
from tenantry.api.api_keys import api_key_routes
from tenantry.api.app import build_api
from tenantry.api.audit import audit_routes
from tenantry.api.auth import answer_gateway, auth_routes
from tenantry.api.billing import billing_routes
from tenantry.api.guards import Access
from tenantry.api.members import member_routes
from tenantry.api.openapi import openapi_route
from tenantry.api.operator import operator_routes
from tenantry.api.projects import answer_project_list, project_routes
from tenantry.api.reference import reference_route
from tenantry.api.tenants import tenant_routes
from tenantry.api.webhooks import WebhookReceiver
from tenantry.audit.trail import AuditService
from tenantry.auth.admission import AuthenticationParts, stop
from tenantry.auth.api_keys import ApiKeyService
from tenantry.auth.leak_reports import LeakReportService
from tenantry.auth.operator_keys import OperatorKeyService
from tenantry.auth.sessions import SessionService
from tenantry.billing.access_ends import record_access_ends
from tenantry.billing.checkout import CheckoutService
from tenantry.billing.event_feed import EventFeed
from tenantry.billing.ingest import WebhookService
from tenantry.billing.ledger_queries import LedgerQueries
from tenantry.billing.reconcile import Reconciler
from tenantry.billing.replay import ReplayService
from tenantry.billing.stale_tenants import count_stale_tenants
from tenantry.billing.unplaced_events import UnplacedEvents
from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock, Timeouts, system_clock
from tenantry.common.tracing import Tracing, is_installed
from tenantry.dashboard.billing import waits_for_provider
from tenantry.dashboard.context import DashboardServices
from tenantry.dashboard.events import is_stream
from tenantry.dashboard.routes import Dashboard
from tenantry.dashboard.sign_in import CALLBACK
from tenantry.db.batcher import BatchMetrics
from tenantry.db.database import Database
from tenantry.db.migrate import is_current, schema_revision
from tenantry.db.outbox import Outbox
from tenantry.domain.api_keys import RevocationReason
from tenantry.domain.errors import DatabaseUnavailableError, DomainError
from tenantry.domain.owner_mails import OwnerNotice
from tenantry.domain.sessions import SessionSecret
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.oidc.claim_checks import CHECKS
from tenantry.integrations.oidc.sign_in import SignIn, UserInfo
from tenantry.integrations.smtp import Mailer
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.integrations.stripe.signature import SignatureVerifier
from tenantry.jobs.database_metrics import DatabaseMetrics
from tenantry.jobs.queue import JobQueue
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry.notifications.access_ends import mail_access_ends
from tenantry.notifications.mail_delivery import MailService
from tenantry.server.asgi_types import AsgiApp
from tenantry.server.client_limits import ClientLimits
from tenantry.server.cors import CorsPolicy
from tenantry.server.dispatch import Dispatcher, HotRoutes
from tenantry.server.health import health_routes
from tenantry.server.metrics import Metrics
from tenantry.server.request_log import LoggingDispatcher
from tenantry.server.shutdown import Shutdown
from tenantry.settings import Settings

_SAMPLED_EVERY: Final = 5.0
"""Seconds."""
# Running jobs have 15 s; recording their end may then wait for a standby that does not answer.
_JOBS_END: Final = 20.0

logger = logging.getLogger(__name__)


def build_app(
    settings: Settings,
    conninfo: str,
    clock: Clock = system_clock,
    monotonic: Callable[[], float] = time.monotonic,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
) -> Dispatcher:
    """The whole service as one ASGI application on the database at ``conninfo``, whose schema is up
    to date.
    """
    parts = Parts(settings, conninfo, clock, monotonic, timeouts)
    shutdown = Shutdown(on_drain=parts.end_jobs, on_close=parts.event_feed.end)

    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncIterator[None]:
        async with parts.running(with_jobs=settings.run_jobs):
            yield

    authenticator = parts.authentication.authenticator
    access = Access(parts.admission, authenticator, settings.operator_token, parts.email_of_token)
    dashboard = Dashboard(parts.dashboard())
    routes = [
        *health_routes(
            [parts.check_database, parts.check_identity],
            parts.metrics,
            parts.read_database_metrics,
            shutdown,
        ),
        *auth_routes(access),
        *project_routes(parts.projects, access),
        *api_key_routes(parts.api_keys, parts.leaks, access),
        *tenant_routes(parts.tenants, access),
        *member_routes(parts.members, parts.memberships, parts.tenants, access),
        *audit_routes(parts.trail, access),
        *operator_routes(
            parts.directory, parts.tenants, parts.operator_keys, parts.unplaced_events, access
        ),
        *billing_routes(parts.billing, parts.checkout, settings.billing.catalog, access),
        openapi_route(settings.base_url),
        reference_route(settings.base_url, dashboard.assets),
        *dashboard.routes(),
    ]
    verifier = SignatureVerifier(
        [secret.reveal() for secret in settings.webhook_secrets], settings.webhook_tolerance
    )
    hot = HotRoutes()
    traceparent = parts.tracing.traceparent if parts.tracing else None
    endpoint = WebhookReceiver(
        parts.webhooks, verifier, parts.metrics, clock, settings.billing, traceparent
    )
    hot.add(None, webhooks.PATH, endpoint.handle)
    hot.add("GET", projects.PATH, partial(answer_project_list, parts.admission))
    hot.add_prefix(
        auth.VERIFY_PREFIX, auth.VERIFY_TEMPLATE, partial(answer_gateway, parts.admission)
    )
    api = cast(
        "AsgiApp", build_api(routes, [lifespan], dashboard.page_of, [dashboard.before_page_of])
    )
    dispatcher: Callable[..., Dispatcher] = Dispatcher
    logs_requests = settings.log_requests or settings.log_requests_to is not None
    if parts.tracing is not None or logs_requests:
        dispatcher = partial(LoggingDispatcher, tracing=parts.tracing, logs=logs_requests)
    return dispatcher(
        hot,
        api,
        parts.metrics,
        throttled=lambda: parts.admission.throttle.waiting,
        no_deadline=lambda path: is_checkout(path) or waits_for_provider(path) or is_stream(path),
        limits=ClientLimits(connections=settings.max_connections),
        shutdown=shutdown,
        error_page=dashboard.raw_page_of,
        secure=settings.base_url.startswith("https://"),
        cors=CorsPolicy(settings.cors_origins) if settings.cors_origins else None,
        deadline=timeouts.request,
    )


async def run_jobs(settings: Settings, conninfo: str) -> None:
    """Run the jobs alone, in this one process, until cancelled."""
    parts = Parts(settings.replace(workers=1), conninfo, system_clock)
    async with parts.running(with_jobs=True, serves=False):
        await asyncio.Event().wait()


class Parts:
    """The service's parts, built and wired: each uses only those above it."""

    def __init__(
        self,
        settings: Settings,
        conninfo: str,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.settings = settings
        self.clock = clock
        oidc, policy, catalog = settings.oidc, settings.billing, settings.billing.catalog

        # Metrics, traces, and connections to others
        self.metrics = Metrics(several_processes=settings.workers > 1)
        for reason in RevocationReason:
            self.metrics.revoked.labels(reason)  # counters start at 0
        for check in CHECKS:
            self.metrics.tokens_refused.labels(check.word)
        self.tracing = tracing = begin_tracing(settings)
        self.database = Database(
            conninfo,
            settings.database_pool_size,
            settings.database_pooler_url,
            metrics_of=lambda name: BatchMetrics(name, self.metrics.lane(name), tracing),
            tracing=tracing,
            timeouts=timeouts,
        )
        self.database_metrics = DatabaseMetrics(self.database)
        self.http_client = new_http_client(peer="identity provider", tracing=tracing)
        self.outbox = outbox = Outbox(
            asks_provider=settings.provider_secret_key is not None, tracing=tracing
        )
        self.queue = JobQueue(
            conninfo, failover=self.database.failover, timeouts=timeouts, outbox=outbox
        )
        self.provider: ProviderApi | None = None
        if key := settings.provider_secret_key:
            base, seconds = settings.provider_api_base, timeouts.payment_provider
            self.provider = ProviderApi(key, base, clock, timeout=seconds, tracing=tracing)

        # Authentication
        self.memberships = MembershipService(self.database, settings.issuers, clock)
        self.owner_addresses = owner_address_writes(self.database, outbox, clock)
        self.authentication = AuthenticationParts(
            self.database,
            self.http_client,
            peppers=settings.peppers,
            oidc=oidc,
            catalog=catalog,
            clock=clock,
            monotonic=monotonic,
            owner_seen=self.owner_addresses.record,
            accept=self.memberships.accept_named,
            limited=lambda policy: self.metrics.rate_limited.labels(policy).inc(),
            refused=self._credential_refused,
            unknown_role=self.metrics.unknown_roles.inc,
        )
        self.admission = self.authentication.admission
        self.keys = keys = self.authentication.keys
        self.userinfo: UserInfo | None = None
        if oidc and keys:
            self.userinfo = UserInfo(
                oidc, keys, self.http_client, timeout=timeouts.identity_provider
            )
        peppers, issuers = self.authentication.peppers, settings.issuers
        self.api_keys = ApiKeyService(
            self.database, catalog, peppers[0], clock, issuers, self._keys_revoked
        )
        self.operator_keys = OperatorKeyService(self.api_keys)
        self.leaks = LeakReportService(self.database, peppers, outbox, clock, self._keys_revoked)

        # Accounts
        self.projects = ProjectService(self.database, catalog, clock)
        self.tenants = TenantService(
            self.database,
            policy,
            outbox,
            clock,
            issuers,
            self._keys_revoked,
            tenants_per_user=settings.tenants_per_user,
            email_subjects=settings.email_subjects,
        )
        self.directory = TenantDirectory(self.database, catalog, self.operator_keys, clock)
        self.members = MemberService(
            self.database, issuers, catalog, clock, email_subjects=settings.email_subjects
        )
        self.confirmations = OwnerConfirmations(self.database, outbox, clock)
        self.trail = AuditService(self.database)

        # Billing
        lanes = [self.database.lane(name="events") for _ in range(2)]
        self.webhooks = WebhookService(lanes, policy, outbox, clock)
        # one batch at a time: snapshots are applied in the order in which they were fetched
        self.fetched = WebhookService([self.database.lane(name="fetched")], policy, outbox, clock)
        self.billing = LedgerQueries(self.database)
        self.unplaced_events = UnplacedEvents(self.database, clock)
        self.event_feed = EventFeed(self.database)
        self.checkout = CheckoutService(
            self.database, self.provider, settings.billing, settings.base_url
        )

        # What the worker does
        mail: MailService | None = None
        if settings.smtp:
            mail = MailService(
                self.database, Mailer(settings.smtp, tracing), clock, base_url=settings.base_url
            )
        reconciler: Reconciler | None = None
        if self.provider:
            reconciler = Reconciler(
                self.database, self.provider, self.fetched, policy, outbox, clock
            )
        notices_access_ends = OwnerNotice.ACCESS_ENDED in policy.notices
        self.work = Work(
            mail,
            RetentionService(self.database, timedelta(days=settings.raw_body_days), clock),
            partial(
                count_stale_tenants,
                self.database,
                timedelta(hours=settings.stale_tenant_hours),
                clock,
            ),
            reconciler,
            settings.reconcile_hours,
            self.database,
            tracing,
            partial(mail_access_ends, self.database, outbox, policy, clock)
            if notices_access_ends
            else None,
            partial(
                record_access_ends,
                self.database,
                outbox,
                clock,
                asks_provider=self.provider is not None,
            ),
        )
        self._jobs: asyncio.Task[None] | None = None

    def dashboard(self) -> DashboardServices:
        """The services behind the dashboard."""
        settings = self.settings
        secret = SessionSecret(settings.session_secret.reveal())
        return DashboardServices(
            secret=secret,
            sessions=SessionService(self.database, secret, settings.issuers, self.clock),
            authenticator=self.authentication.authenticator,
            sign_in=self._sign_in(),
            api_keys=self.api_keys,
            tenants=self.tenants,
            members=self.members,
            confirmations=self.confirmations,
            memberships=self.memberships,
            projects=self.projects,
            trail=self.trail,
            billing=self.billing,
            checkout=self.checkout,
            overview=OverviewService(self.database, settings.issuers, settings.billing, self.clock),
            event_feed=self.event_feed,
            replay=ReplayService(self.database, settings.billing, self.clock),
            catalog=settings.billing.catalog,
            base_url=settings.base_url,
            people=settings.demo_people,
            demo_pages=settings.demo_pages,
            command=settings.command,
            clock=self.clock,
        )

    def _sign_in(self) -> SignIn | None:
        """The sign-in, if the identity provider has this service as a client."""
        oidc = self.settings.oidc
        if oidc is None or oidc.client_id is None or self.keys is None:
            return None
        return SignIn(
            oidc,
            self.keys,
            self.http_client,
            client_id=oidc.client_id,
            client_secret=self.settings.oidc_client_secret,
            redirect_uri=self.settings.base_url + CALLBACK,
            clock=self.clock,
            timeout=self.database.timeouts.token_endpoint,
        )

    @asynccontextmanager
    async def running(self, *, with_jobs: bool, serves: bool = True) -> AsyncIterator[None]:
        """Open and run every part while the block runs, and close them in reverse order."""
        async with AsyncExitStack() as stack:
            if self.tracing is not None:
                stack.push_async_callback(asyncio.to_thread, self.tracing.close)
            stack.push_async_callback(self.http_client.aclose)
            if self.provider is not None:
                stack.push_async_callback(self.provider.aclose)
            await self.database.open()
            stack.push_async_callback(self.database.close)
            stack.push_async_callback(self.owner_addresses.write)
            stack.push_async_callback(stop, asyncio.create_task(self.owner_addresses.run()))
            stack.push_async_callback(stop, asyncio.create_task(self.event_feed.run()))
            await stack.enter_async_context(self.authentication.running())
            await self.queue.open()
            stack.push_async_callback(self.queue.close)
            stack.push_async_callback(stop, asyncio.create_task(self._keep_sampling()))
            stack.push_async_callback(self.webhooks.close)
            stack.push_async_callback(self.fetched.close)
            if with_jobs:
                self._jobs = asyncio.create_task(
                    self.queue.run_worker(self.work, is_alone=not serves)
                )
                stack.push_async_callback(stop, self._jobs, _JOBS_END)
            yield

    def end_jobs(self) -> None:
        """Start no more jobs, and let running ones finish."""
        if self._jobs is not None:
            self._jobs.cancel()

    async def check_database(self) -> str | None:
        """Return what makes the database not ready, if anything."""
        try:
            revision = await schema_revision(self.database)
        except DatabaseUnavailableError:
            return "database"
        return None if is_current(revision) else "schema"

    async def check_identity(self) -> str | None:
        """Return what makes the identity provider not ready: its keys were not requested yet."""
        return None if self.keys is None or self.keys.attempted else "identity provider"

    async def read_database_metrics(self) -> list[Metric] | None:
        """Read the metrics that the database holds, and update those of this process."""
        self._sample()
        return await self.database_metrics.read()

    async def _keep_sampling(self) -> None:
        """Update this process's metrics regularly: another process may answer the scrape."""
        while True:
            self._sample()
            await asyncio.sleep(_SAMPLED_EVERY)

    def _sample(self) -> None:
        self.metrics.set_pool("ordinary", self.database.pool_stats())
        self.metrics.set_pool("jobs", self.queue.pool_stats())
        self.metrics.streams.set(len(self.event_feed))

    def _credential_refused(self, kind: str, error: DomainError) -> None:
        self.metrics.refused.labels(kind, error.code).inc()
        if error.token_fault is not None:
            self.metrics.tokens_refused.labels(error.token_fault.check).inc()

    def _keys_revoked(self, reason: RevocationReason, number: int) -> None:
        self.metrics.revoked.labels(reason).inc(number)

    async def email_of_token(self, token: str, subject: str) -> str | None:
        """The verified address of an access token's user, from the identity provider."""
        return await self.userinfo.userinfo_email(token, subject) if self.userinfo else None


def begin_tracing(settings: Settings) -> Tracing | None:
    """Set up tracing if the settings ask for it and the packages are installed."""
    if not settings.traces:
        return None
    if not is_installed():
        logger.warning(
            "traces are enabled, but their packages are missing: install the extra otel (docs/how-to/tracing.md)"
        )
        return None
    return Tracing(__version__)


def is_checkout(path: str) -> bool:
    """Whether a path waits for the payment provider, which may be slower than the database."""
    return path.startswith("/api/v1/billing/") and path.endswith("-sessions")

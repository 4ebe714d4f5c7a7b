"""The composition root: `build_app` and `run_jobs` build every part and connect them."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache, partial
from itertools import product
from typing import Final, cast

import httpx2
import msgspec
from litestar import Litestar
from prometheus_client import Metric

from tenantry import __version__
from tenantry.accounts.invitations import InvitationService
from tenantry.accounts.member_directory import MemberDirectory
from tenantry.accounts.memberships.members import MemberService
from tenantry.accounts.memberships.own import MembershipService
from tenantry.accounts.overview import OverviewService
from tenantry.accounts.owner_addresses import OwnerConfirmations, owner_address_writes
from tenantry.accounts.projects import ProjectService
from tenantry.accounts.projects_store import PAGE_OF_CALLER
from tenantry.accounts.tenant_directory import TenantDirectory
from tenantry.accounts.tenants import TenantService
from tenantry.api import auth, projects, webhooks
from tenantry.api.app import build_api
from tenantry.api.auth import GatewayCheck
from tenantry.api.billing import PLANS_PATH
from tenantry.api.guards import Access
from tenantry.api.openapi import openapi_document, show_openapi
from tenantry.api.operator_access import OperatorAccess
from tenantry.api.projects import ProjectList
from tenantry.api.reference import reference_page, reference_templates, show_reference
from tenantry.api.routes import api_routes
from tenantry.api.services import UseCases
from tenantry.api.webhooks import WebhookReceiver
from tenantry.audit.operator_trail import OperatorTrail
from tenantry.audit.trail import AuditService
from tenantry.auth.admission import AuthenticationParts
from tenantry.auth.api_keys import ApiKeyService
from tenantry.auth.entitlements import EntitlementService, TellUse
from tenantry.auth.key_import import KeyImportService
from tenantry.auth.leak_reports import LeakReportService
from tenantry.auth.operator_keys import OperatorKeyService
from tenantry.auth.quota_events import QuotaEvents
from tenantry.auth.rejection_log import RejectionLog
from tenantry.auth.rejections import RejectionService
from tenantry.auth.sessions import SessionService
from tenantry.auth.usage import UsageService
from tenantry.auth.usage_counting import UsageCounter
from tenantry.auth.user_profiles import UserProfileService
from tenantry.billing import event_feed
from tenantry.billing.access_ends import record_access_ends
from tenantry.billing.checkout import CheckoutOptions, CheckoutService
from tenantry.billing.customer_accounts import CustomerAccounts
from tenantry.billing.customer_links import CustomerLinks
from tenantry.billing.event_feed import EventFeed
from tenantry.billing.grants import GrantService
from tenantry.billing.ingest import WebhookService
from tenantry.billing.ledger_queries import LedgerQueries, OperatorLedger
from tenantry.billing.prices import PriceList
from tenantry.billing.provider_refusals import ProviderRefusals
from tenantry.billing.reconcile import Reconciler
from tenantry.billing.replay import ReplayService
from tenantry.billing.reversals import ReversalPlacer
from tenantry.billing.seats import SeatService
from tenantry.billing.stale_tenants import count_stale_tenants
from tenantry.billing.tenant_runs import TenantRunner, TenantRuns
from tenantry.billing.unplaced_events import UnplacedEvents
from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock, Timeouts, system_clock
from tenantry.common.tracing import Tracing, is_installed
from tenantry.dashboard.context import PageComponents, dashboard_templates
from tenantry.dashboard.error_pages import before_page_of, page_of, raw_page_of
from tenantry.dashboard.routes import build_pages, dashboard_routes
from tenantry.dashboard.sign_in import CALLBACK
from tenantry.db.background import BackgroundGroup
from tenantry.db.batcher import GATHER_SECONDS, BatchMetrics
from tenantry.db.database import Database
from tenantry.db.migrate import is_current, schema_revision
from tenantry.db.outbox import Outbox
from tenantry.db.write_behind import WriteBehind
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.domain.owner_mails import OwnerNotice
from tenantry.domain.sessions import SessionSecret
from tenantry.installation.state import InstallationService
from tenantry.installation.webhook_operations import WebhookOperations
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.oidc.claims import Claims
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.sign_in import SignIn, UserInfo
from tenantry.integrations.smtp import Mailer
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.integrations.stripe.signature import SignatureVerifier
from tenantry.integrations.webhook_client import WebhookClient
from tenantry.jobs.database_metrics import DatabaseMetrics
from tenantry.jobs.queue import JobQueue
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work, no_check
from tenantry.notifications.access_ends import mail_access_ends
from tenantry.notifications.key_reminders import mail_key_reminders
from tenantry.notifications.mail_delivery import MailService
from tenantry.notifications.mail_history import MailHistory
from tenantry.notifications.quota_notices import QuotaNotices
from tenantry.outbound.feed import ChangeFeed
from tenantry.outbound.webhooks import OutboundWebhooks
from tenantry.server.asgi_types import AsgiApp
from tenantry.server.client_limits import ClientLimits
from tenantry.server.cors import CorsPolicy
from tenantry.server.dispatch import Dispatcher, HotRoutes
from tenantry.server.health import HEALTH_ROUTES, HealthState, SharedMetrics
from tenantry.server.metrics import Metrics
from tenantry.server.page_assets import load_templates, show_asset
from tenantry.server.protected_resource import METHODS
from tenantry.server.request_log import LoggingDispatcher
from tenantry.server.service_app import ServiceApp
from tenantry.server.shutdown import Shutdown
from tenantry.server.waiting_paths import waiting_paths
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
    services = parts.services
    if settings.branding.adapted:
        logger.warning("PRODUCT_COLOR: %s", settings.branding.adapted)
    pages = build_pages(
        services,
        parts.authentication.authenticator,
        parts.session_secret,
        settings.branding,
        settings.operators,
        command=settings.command,
        demo_pages=settings.demo_pages,
    )
    shutdown = Shutdown(on_drain=parts.end_jobs, on_close=services.end_streams)
    return _dispatcher_class(parts)(
        hot_routes(parts),
        service_app(parts, pages, shutdown),
        parts.base.metrics,
        throttled=lambda: parts.admission.throttle.waiting,
        no_deadline=waiting_paths(litestar_routes()),
        limits=ClientLimits(connections=settings.max_connections),
        shutdown=shutdown,
        error_page=partial(raw_page_of, pages.renderer),
        secure=settings.base_url.startswith("https://"),
        cors=cors_policy(settings),
        api_key_header=settings.credentials.api_key_header,
        resource=settings.protected_resource,
        deadline=timeouts.request,
        usage=parts.usage.count,
        rejected=parts.rejections.record,
    )


def _dispatcher_class(parts: "Parts") -> Callable[..., Dispatcher]:
    """Return the dispatcher that writes traces and request logs, if they are enabled."""
    settings = parts.base.settings
    tracing = parts.base.tracing
    logs_requests = settings.log_requests or settings.log_requests_to is not None
    if tracing is None and not logs_requests:
        return Dispatcher
    return partial(LoggingDispatcher, tracing=tracing, logs=logs_requests)


def cors_policy(settings: Settings) -> CorsPolicy | None:
    """Return which pages of other origins may call the API; None where none may."""
    public_paths = [PLANS_PATH] if settings.public_plans else []
    if not settings.cors_origins and not public_paths:
        return None
    return CorsPolicy(
        settings.cors_origins,
        public_paths,
        settings.credentials.api_key_header,
    )


@cache
def litestar_routes() -> Litestar:
    """All routes but the hot ones, registered once a process: that takes half a second."""
    return build_api(
        [
            *HEALTH_ROUTES,
            *api_routes(),
            show_openapi,
            show_reference,
            show_asset,
            dashboard_routes(),
        ],
        page_of=page_of,
        before_refusal=[before_page_of],
    )


def prepare_process() -> None:
    """Do what a process needs once, and no request may wait for: register the routes, and compile
    the templates.
    """
    litestar_routes()
    load_templates(dashboard_templates())
    load_templates(reference_templates())


def service_app(parts: "Parts", pages: PageComponents, shutdown: Shutdown) -> ServiceApp:
    """The application that answers every route but the hot ones."""
    settings = parts.base.settings
    access = Access(
        parts.admission,
        parts.authentication.authenticator,
        parts.operator,
        parts.email_of_token,
        settings.public_plans,
    )
    health = HealthState(
        [parts.check_database, parts.check_identity],
        parts.shared_metrics,
        shutdown,
    )
    litestar = litestar_routes()
    deployment = (litestar, settings.base_url, settings.credentials, settings.branding)
    state = {
        "access": access,
        "services": parts.services,
        "pages": pages,
        "assets": pages.renderer.assets,
        "health": health,
        "openapi": openapi_document(*deployment),
        "reference": reference_page(*deployment, assets=pages.renderer.assets),
    }
    lifespan = parts.running(with_jobs=settings.run_jobs)
    return ServiceApp(cast("AsgiApp", litestar), state, lifespan)


def hot_routes(parts: "Parts") -> HotRoutes:
    """The routes that are answered without Litestar: events, the project list, the check for
    gateways.
    """
    base = parts.base
    settings = parts.base.settings
    secrets = [secret.reveal() for secret in settings.webhook_secrets]
    receiver = WebhookReceiver(
        parts.webhooks,
        SignatureVerifier(secrets, settings.webhook_tolerance),
        base.metrics,
        base.clock,
        settings.billing,
        base.tracing.traceparent if base.tracing else None,
    )
    hot = HotRoutes()
    hot.add(None, webhooks.PATH, receiver.handle)
    project_list = ProjectList(parts.admission, parts.operator, parts.services.projects)
    hot.add("GET", projects.PATH, project_list.answer, project_list)
    check = GatewayCheck(parts.admission)
    hot.add_prefix(auth.VERIFY_PREFIX, auth.VERIFY_TEMPLATE, check.answer, check)
    if (resource := settings.protected_resource) is not None:
        for method, path in product(METHODS, resource.paths):
            hot.add(method, path, resource.answer)
    return hot


async def run_jobs(settings: Settings, conninfo: str) -> None:
    """Run the jobs alone, in this one process, until cancelled."""
    parts = Parts(settings.replace(workers=1), conninfo, system_clock)
    async with parts.running(with_jobs=True, serves=False):
        await asyncio.Event().wait()


class Base(msgspec.Struct, frozen=True):
    """What the other parts are built on."""

    settings: Settings
    clock: Clock
    metrics: Metrics
    tracing: Tracing | None
    database: Database
    outbox: Outbox
    tell_use: Sequence[TellUse]
    """What reports used quotas."""
    http_client: httpx2.AsyncClient
    """For requests to the identity provider."""
    provider: ProviderApi | None
    """The payment provider's API, if it is configured."""


def build_base(settings: Settings, conninfo: str, clock: Clock, timeouts: Timeouts) -> Base:
    """Build metrics, tracing, and the connections to others, without opening any."""
    metrics = Metrics(several_processes=settings.workers > 1)
    tracing = begin_tracing(settings)
    database = Database(
        conninfo,
        settings.database_pool_size,
        settings.database_pooler_url,
        metrics_of=lambda name: BatchMetrics(name, metrics.lane(name), tracing),
        tracing=tracing,
        timeouts=timeouts,
        telemetry=metrics,
    )
    provider: ProviderApi | None = None
    if settings.provider_secret_key:
        provider = ProviderApi(
            settings.provider_secret_key,
            settings.provider_api_base,
            clock,
            timeout=timeouts.payment_provider,
            tracing=tracing,
        )
    outbox = Outbox(
        asks_provider=provider is not None,
        follows_seats=settings.follows_seats,
        tracing=tracing,
    )
    tell_use: list[TellUse] = [QuotaEvents(settings.billing.catalog).publish]
    if OwnerNotice.QUOTA_USED in settings.billing.notices:
        tell_use.append(QuotaNotices(outbox, settings.billing.catalog).queue)
    return Base(
        settings,
        clock,
        metrics,
        tracing,
        database,
        outbox,
        tell_use,
        new_http_client(peer="identity provider", tracing=tracing),
        provider,
    )


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


def build_authentication(
    base: Base,
    monotonic: Callable[[], float],
    owner_addresses: WriteBehind[Claims],
    memberships: MembershipService,
) -> AuthenticationParts:
    """Build the authentication of requests, which records and counts what it sees."""
    settings = base.settings
    return AuthenticationParts(
        base.database,
        base.http_client,
        peppers=settings.peppers,
        oidc=settings.oidc,
        catalog=settings.billing.catalog,
        clock=base.clock,
        monotonic=monotonic,
        owner_seen=owner_addresses.record,
        accept=memberships.accept_named,
        telemetry=base.metrics,
        page=PAGE_OF_CALLER,
        credentials=settings.credentials,
        tell_use=base.tell_use,
        checks_url=settings.database_checks_url,
        # one process would only be idle meanwhile: the others use its processor
        gather_seconds=GATHER_SECONDS if settings.workers > 1 else 0.0,
    )


def build_ingest(base: Base, name: str, *, lanes: int) -> WebhookService:
    """Build what applies events, in as many batches at a time as there are ``lanes``."""
    return WebhookService(
        [base.database.lane(name=name) for _ in range(lanes)],
        base.settings.billing,
        base.outbox,
        base.clock,
    )


def build_services(
    base: Base,
    authentication: AuthenticationParts,
    memberships: MembershipService,
    session_secret: SessionSecret,
) -> UseCases:
    """Build the use cases behind routes and pages."""
    settings = base.settings
    database = base.database
    outbox = base.outbox
    clock = base.clock
    policy = settings.billing
    issuers = settings.issuers
    peppers = authentication.peppers
    catalog = policy.catalog
    by_email = settings.email_subjects
    refusals = ProviderRefusals(database, clock)
    api_keys = ApiKeyService(
        database,
        catalog,
        peppers[0],
        clock,
        issuers,
        base.metrics,
        settings.key_format,
        settings.credentials.proxies,
    )
    operator_keys = OperatorKeyService(api_keys)
    return UseCases(
        api_keys=api_keys,
        key_import=KeyImportService(
            database,
            peppers,
            clock,
            settings.imported_key_pattern,
            settings.credentials.proxies,
        ),
        leaks=LeakReportService(
            database,
            peppers,
            outbox,
            clock,
            base.metrics,
            settings.credentials,
        ),
        projects=ProjectService(database, catalog, clock),
        tenants=TenantService(
            database,
            policy,
            outbox,
            clock,
            issuers,
            base.metrics,
            tenants_per_user=settings.tenants_per_user,
            email_subjects=by_email,
            provider=base.provider,
        ),
        grants=GrantService(database, policy, outbox, clock),
        members=MemberService(
            database,
            issuers,
            catalog,
            clock,
            outbox=outbox,
            email_subjects=by_email,
        ),
        member_directory=MemberDirectory(database, issuers, clock),
        memberships=memberships,
        profiles=UserProfileService(database),
        invitations=InvitationService(
            database,
            issuers,
            catalog,
            clock,
            settings.invitation_links,
            outbox=outbox,
            write_visits=authentication.visits.write_early,
        ),
        trail=AuditService(database),
        billing=LedgerQueries(database),
        checkout=CheckoutService(
            database,
            base.provider,
            policy,
            settings.base_url,
            issuers=issuers,
            options=CheckoutOptions(
                promotion_codes=settings.checkout_promotion_codes,
                tax=settings.checkout_tax,
            ),
            outbox=outbox,
        ),
        prices=PriceList(base.provider, catalog),
        customer_accounts=CustomerAccounts(
            base.provider,
            database.timeouts.billing_page,
            refusals_of=lambda customer: refusals.kept("customer lookup", customer_id=customer),
        ),
        directory=TenantDirectory(
            database,
            catalog,
            operator_keys,
            clock,
        ),
        installation=InstallationService(database, settings, clock, webhooks.PATH),
        operator_keys=operator_keys,
        operator_ledger=OperatorLedger(database, policy, clock),
        operator_trail=OperatorTrail(database),
        links=CustomerLinks(database, policy, outbox, clock),
        outbound_webhooks=WebhookOperations(build_outbound_webhooks(base)),
        unplaced_events=UnplacedEvents(database, clock),
        catalog=catalog,
        sessions=SessionService(
            database,
            session_secret,
            issuers,
            clock,
        ),
        sign_in=build_sign_in(base, authentication.keys),
        confirmations=OwnerConfirmations(database, outbox, catalog, clock),
        mail_history=MailHistory(database),
        overview=OverviewService(database, issuers, policy, clock),
        event_feed=EventFeed(database),
        changes=ChangeFeed(database),
        entitlements=EntitlementService(
            database,
            database.lane(name="entitlements"),
            catalog,
            clock,
            base.tell_use,
            base.metrics,
        ),
        usage=UsageService(database, clock),
        rejections=RejectionService(database),
        tenant_runs=TenantRuns(database, outbox, clock, asks_provider=base.provider is not None),
        reminds_of_keys=settings.key_expiry_mails,
        base_url=settings.base_url,
        people=settings.demo_people,
        clock=clock,
    )


def build_sign_in(base: Base, keys: KeySet | None) -> SignIn | None:
    """Build the sign-in, if the identity provider has this service as a client."""
    settings = base.settings
    oidc = base.settings.oidc
    if oidc is None or oidc.client_id is None or keys is None:
        return None
    return SignIn(
        oidc,
        keys,
        base.http_client,
        client_id=oidc.client_id,
        client_secret=settings.oidc_client_secret,
        redirect_uri=settings.base_url + CALLBACK,
        clock=base.clock,
        timeout=base.database.timeouts.token_endpoint,
    )


def build_work(base: Base, fetched: WebhookService) -> Work:
    """Build what the worker does; ``fetched`` applies snapshots."""
    settings = base.settings
    database = base.database
    outbox = base.outbox
    clock = base.clock
    policy = settings.billing
    provider = base.provider
    mail: MailService | None = None
    if settings.smtp:
        mailer = Mailer(settings.smtp, base.tracing)
        mail = MailService(
            database,
            mailer,
            clock,
            base_url=settings.base_url,
            product=settings.branding,
            links=settings.invitation_links,
        )
    reconciler: Reconciler | None = None
    if provider:
        reconciler = Reconciler(
            database,
            provider,
            fetched,
            policy,
            outbox,
            clock,
        )
    seats: SeatService | None = None
    if provider and settings.follows_seats:
        seats = SeatService(
            database,
            provider,
            policy,
            outbox,
            clock,
            settings.issuers,
        )
    endpoints = policy.catalog.webhooks
    stale = timedelta(hours=settings.stale_tenant_hours)
    mails_ends = OwnerNotice.ACCESS_ENDED in policy.notices
    return Work(
        mail,
        RetentionService(
            database,
            timedelta(days=settings.raw_body_days),
            clock,
            [endpoint.name for endpoint in endpoints],
        ),
        count_stale_tenants=partial(count_stale_tenants, database, stale, clock),
        reconciler=reconciler,
        seats=seats,
        webhooks=build_outbound_webhooks(base) if endpoints else None,
        reconcile_hours=settings.reconcile_hours,
        counted_in=database,
        tracing=base.tracing,
        tenant_runs=TenantRunner(
            database, ReplayService(database, policy, clock), reconciler, clock
        ),
        mail_access_ends=(
            partial(
                mail_access_ends,
                database,
                outbox,
                policy,
                clock,
            )
            if mails_ends
            else no_check
        ),
        mail_key_reminders=partial(mail_key_reminders, database, outbox, clock),
        record_access_ends=partial(
            record_access_ends,
            database,
            outbox,
            policy.catalog,
            clock,
            asks_provider=provider is not None,
        ),
        place_reversals=ReversalPlacer(database, provider, policy, outbox, clock).place_parked,
    )


def build_outbound_webhooks(base: Base) -> OutboundWebhooks:
    """Build what sends events to the endpoints of the plan catalog."""
    return OutboundWebhooks(
        base.database,
        base.outbox,
        WebhookClient(base.tracing),
        base.clock,
        base.settings.billing.catalog.webhooks,
    )


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
        self.base = base = build_base(settings, conninfo, clock, timeouts)
        self.owner_addresses = owner_address_writes(
            base.database, base.outbox, settings.billing.catalog, clock
        )
        self.usage = UsageCounter(base.database, clock, base.metrics)
        self.rejections = RejectionLog(base.database, clock)
        memberships = MembershipService(
            base.database,
            settings.issuers,
            clock,
            base.outbox,
        )
        self.authentication = build_authentication(
            base,
            monotonic,
            self.owner_addresses,
            memberships,
        )
        self.admission = self.authentication.admission
        self.operator = OperatorAccess(settings.operator_tokens, self.authentication.authenticator)
        self.session_secret = SessionSecret(settings.session_secret.reveal())
        self.services = build_services(
            base,
            self.authentication,
            memberships,
            self.session_secret,
        )
        self.webhooks = build_ingest(base, "events", lanes=2)
        # one batch at a time: snapshots are applied in the order in which they were fetched
        self.fetched = build_ingest(base, "fetched", lanes=1)
        self.work = build_work(base, self.fetched)
        self.queue = JobQueue(
            conninfo,
            failover=base.database.failover,
            timeouts=timeouts,
            outbox=base.outbox,
            reminds_of_keys=settings.key_expiry_mails,
        )
        self.database_metrics = DatabaseMetrics(base.database, settings.billing.catalog.webhooks)
        self.shared_metrics = SharedMetrics(
            base.metrics, self.read_database_metrics, timeouts.metrics
        )
        self._jobs: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self, *, with_jobs: bool, serves: bool = True) -> AsyncIterator[None]:
        """Open and run every part while the block runs, and close them in reverse order."""
        async with BackgroundGroup() as group:
            await self._connect(group)
            if serves:
                self._start_serving(group)
            self.owner_addresses.repeat_in(group)
            await self.authentication.start(group)
            group.push_async_callback(self.services.entitlements.close)
            await self.queue.open()
            group.push_async_callback(self.queue.close)
            group.repeat("samples of metrics", self._sample, every=_SAMPLED_EVERY)
            group.push_async_callback(self.webhooks.close)
            group.push_async_callback(self.fetched.close)
            if with_jobs:
                worker = self.queue.run_worker(self.work, is_alone=not serves)
                self._jobs = group.start(worker, recancel_after=_JOBS_END)
            yield

    async def _connect(self, group: BackgroundGroup) -> None:
        """Open the database, without waiting for it; ``group`` closes all connections to others."""
        base = self.base
        if base.tracing is not None:
            group.push_async_callback(asyncio.to_thread, base.tracing.close)
        group.push_async_callback(base.http_client.aclose)
        if base.provider is not None:
            group.push_async_callback(base.provider.aclose)
        group.push_async_callback(self.services.customer_accounts.aclose)
        await group.enter_async_context(base.database)

    def _start_serving(self, group: BackgroundGroup) -> None:
        """Start what only a process that answers requests needs."""
        usage, prices = self.usage, self.services.prices
        group.repeat("writes of usage", usage.write_if_due, every=usage.pause, last=usage.close)
        self.rejections.repeat_in(group)
        group.repeat("reads of the plans' prices", prices.read, every=prices.pause)
        group.repeat(
            "live updates of pages", self.services.event_feed.poll, every=event_feed.INTERVAL
        )

    def end_jobs(self) -> None:
        """Start no more jobs, and let running ones finish."""
        if self._jobs is not None:
            self._jobs.cancel()

    async def check_database(self) -> str | None:
        """Return what makes the database not ready, if anything."""
        try:
            revision = await schema_revision(self.base.database)
        except DatabaseUnavailableError:
            return "database"
        return None if is_current(revision) else "schema"

    async def check_identity(self) -> str | None:
        """Return what makes the identity provider not ready: its keys were not requested yet."""
        keys = self.authentication.keys
        return None if keys is None or keys.attempted else "identity provider"

    async def read_database_metrics(self) -> list[Metric] | None:
        """Read the metrics that the database holds, and update those of this process."""
        await self._sample()
        return await self.database_metrics.read()

    async def _sample(self) -> None:
        """Update this process's metrics: another process may answer the scrape."""
        self.base.metrics.set_pool("ordinary", self.base.database.pool_stats())
        self.base.metrics.set_pool("jobs", self.queue.pool_stats())
        self.base.metrics.streams.set(len(self.services.event_feed))
        self.base.metrics.usage_waiting.set(self.usage.waiting)
        if self.authentication.standbys is not None:
            self.base.metrics.set_standbys(self.authentication.standbys)

    async def email_of_token(self, token: str, subject: str) -> str | None:
        """The verified address of an access token's user, from the identity provider."""
        oidc = self.base.settings.oidc
        keys = self.authentication.keys
        if oidc is None or keys is None:
            return None
        seconds = self.base.database.timeouts.identity_provider
        userinfo = UserInfo(
            oidc,
            keys,
            self.base.http_client,
            timeout=seconds,
        )
        return await userinfo.userinfo_email(token, subject)

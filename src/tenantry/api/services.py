"""The use cases behind routes and pages.

Handlers of routes get them as ``services``, those of pages as ``ctx.services``.
"""

from collections.abc import Sequence

import msgspec
from litestar.di import NamedDependency

from tenantry.accounts.invitations import InvitationService
from tenantry.accounts.member_directory import MemberDirectory
from tenantry.accounts.memberships.members import MemberService
from tenantry.accounts.memberships.own import MembershipService
from tenantry.accounts.overview import OverviewService
from tenantry.accounts.owner_addresses import OwnerConfirmations
from tenantry.accounts.projects import ProjectService
from tenantry.accounts.tenant_directory import TenantDirectory
from tenantry.accounts.tenants import TenantService
from tenantry.api.guards import AnyRequest
from tenantry.audit.operator_trail import OperatorTrail
from tenantry.audit.trail import AuditService
from tenantry.auth.api_keys import ApiKeyService
from tenantry.auth.entitlements import EntitlementService
from tenantry.auth.key_import import KeyImportService
from tenantry.auth.leak_reports import LeakReportService
from tenantry.auth.operator_keys import OperatorKeyService
from tenantry.auth.rejections import RejectionService
from tenantry.auth.sessions import SessionService
from tenantry.auth.usage import UsageService
from tenantry.auth.user_profiles import UserProfileService
from tenantry.billing.checkout import CheckoutService
from tenantry.billing.customer_accounts import CustomerAccounts
from tenantry.billing.customer_links import CustomerLinks
from tenantry.billing.event_feed import EventFeed
from tenantry.billing.grants import GrantService
from tenantry.billing.ledger_queries import LedgerQueries, OperatorLedger
from tenantry.billing.prices import PriceList
from tenantry.billing.tenant_runs import TenantRuns
from tenantry.billing.unplaced_events import UnplacedEvents
from tenantry.common.clock import Clock
from tenantry.domain.plans import Catalog
from tenantry.installation.state import InstallationService
from tenantry.installation.webhook_operations import WebhookOperations
from tenantry.integrations.oidc.sign_in import SignIn
from tenantry.notifications.mail_history import MailHistory
from tenantry.outbound.feed import ChangeFeed
from tenantry.server.service_app import state_of


class UseCases(msgspec.Struct, frozen=True, kw_only=True):
    """The use cases behind the API and the dashboard, and what both show."""

    api_keys: ApiKeyService
    key_import: KeyImportService
    leaks: LeakReportService
    projects: ProjectService
    tenants: TenantService
    grants: GrantService
    members: MemberService
    member_directory: MemberDirectory
    memberships: MembershipService
    profiles: UserProfileService
    invitations: InvitationService
    trail: AuditService
    billing: LedgerQueries
    checkout: CheckoutService
    prices: PriceList
    customer_accounts: CustomerAccounts
    directory: TenantDirectory
    installation: InstallationService
    operator_keys: OperatorKeyService
    operator_ledger: OperatorLedger
    operator_trail: OperatorTrail
    links: CustomerLinks
    outbound_webhooks: WebhookOperations
    unplaced_events: UnplacedEvents
    sessions: SessionService
    sign_in: SignIn | None
    confirmations: OwnerConfirmations
    mail_history: MailHistory
    overview: OverviewService
    event_feed: EventFeed
    changes: ChangeFeed
    entitlements: EntitlementService
    usage: UsageService
    rejections: RejectionService
    tenant_runs: TenantRuns
    reminds_of_keys: bool
    """Whether makers and owners get reminders of API keys by mail."""
    catalog: Catalog
    base_url: str
    people: Sequence[tuple[str, str]]
    """Login hints and names of the demo's users."""
    clock: Clock

    def end_streams(self) -> None:
        """Answer all requests that wait for events, for the end of the process."""
        self.event_feed.end()
        self.changes.end()


Services = NamedDependency[UseCases]
"""The type of a handler's argument ``services``."""


def current_services(request: AnyRequest) -> UseCases:
    """Return the use cases of the request's service."""
    services: UseCases = state_of(request.scope)["services"]
    return services

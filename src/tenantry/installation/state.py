"""The state of the installation, for the operator's page: what needs attention, and facts."""

import asyncio
import logging
import platform
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tenantry import __version__
from tenantry.common.clock import Clock
from tenantry.common.redaction import redact
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.migrate import newest_revision
from tenantry.installation import checks_store as store
from tenantry.installation.data_checks import (
    DATA_CHECKS,
    DataCheck,
    check_login,
    judge_revision,
    judge_server,
    unless_slow,
)
from tenantry.installation.endpoint_checks import check_provider
from tenantry.installation.findings import (
    CheckedDatabase,
    CheckedSettings,
    Finding,
    Level,
    problems_of,
)
from tenantry.installation.identity_checks import check_identity, check_mail
from tenantry.notifications import mails_store
from tenantry.notifications.mails_store import MailQueue, StoppedMail

QUICK_CHECKS: Final = ("billing ledger", "payment provider", "events", "webhooks", "mail", "jobs")
"""The checks of data whose statements an index or the number of problems bounds."""
PEER_SECONDS: Final = 25.0
"""How long a check of another service may take."""
MOST_ENTRIES: Final = 500
"""How many entries of the ledger with anomalies `InstallationService.read_state` looks at, and how
many deliveries of an endpoint it counts.
"""
_MOST_MAILS: Final = 10

logger = logging.getLogger(__name__)


class Versions(msgspec.Struct, frozen=True):
    """What the installation consists of."""

    tenantry: str
    schema: str
    postgresql: str
    python: str


class InstallationState(msgspec.Struct, frozen=True):
    """What the page shows at once. ``unsent`` are the last mails that failed or wait."""

    findings: Sequence[Finding]
    mails: MailQueue
    unsent: Sequence[StoppedMail]
    versions: Versions

    @property
    def problems(self) -> list[Finding]:
        return problems_of(self.findings)

    def of_subject(self, subject: str) -> Finding | None:
        """Return the first finding about a subject, if there is one."""
        return next((each for each in self.findings if each.subject == subject), None)


@dataclass(eq=False)
class InstallationService:
    """Reads the state of the installation. Each check has a transaction of its own."""

    database: Database
    settings: CheckedSettings
    clock: Clock
    webhook_path: str
    _checking: asyncio.Task[list[Finding]] | None = field(default=None, init=False)

    async def read_state(self) -> InstallationState:
        """Read what the database answers quickly, and what the settings show. No other service is
        asked.
        """
        server, versions = await self._check_server()
        findings = [*server, *await self._check_settings()]
        for subject in QUICK_CHECKS:
            findings += await self._check_data(subject, DATA_CHECKS[subject], MOST_ENTRIES)
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            mails = await mails_store.read_queue(connection)
            unsent = await mails_store.read_unsent(connection, _MOST_MAILS)
        return InstallationState([_redacted(each) for each in findings], mails, unsent, versions)

    async def check_all(self) -> list[Finding]:
        """Check as `doctor` does what this process can: all data, and the other services. It may
        take `PEER_SECONDS`.

        A process makes one check at a time: whoever asks meanwhile gets the findings of that one.
        """
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_all())
        return await asyncio.shield(self._checking)

    async def _check_all(self) -> list[Finding]:
        settings = self.settings
        peers = {
            "mail": check_mail(settings.smtp),
            "identity provider": check_identity(settings.oidc),
            "payment provider": check_provider(settings, self.webhook_path),
        }
        found = await asyncio.gather(
            self._check_database(), *[_of_peer(*each) for each in peers.items()]
        )
        return [_redacted(each) for findings in found for each in findings]

    async def _check_database(self) -> list[Finding]:
        findings, _ = await self._check_server()
        for subject, check in DATA_CHECKS.items():
            findings += await self._check_data(subject, check)
        return findings

    async def _check_server(self) -> tuple[list[Finding], Versions]:
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            server = await store.read_settings(connection)
            revision = await store.read_revision(connection)
            login = await check_login(connection)
        findings = [judge_server(server), judge_revision(revision, newest_revision()), login]
        postgresql = server["server_version"].partition(" ")[0]
        versions = Versions(__version__, revision or "none", postgresql, platform.python_version())
        return findings, versions

    async def _check_settings(self) -> list[Finding]:
        """Report the services that are not set up; without them, their checks ask no network."""
        settings = self.settings
        findings = [] if settings.smtp else await check_mail(None)
        if settings.provider_secret_key is None:
            findings += await check_provider(settings, self.webhook_path)
        return findings

    async def _check_data(
        self, subject: str, check: DataCheck, entries: int | None = None
    ) -> list[Finding]:
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            database = CheckedDatabase(connection, self.settings, self.clock(), entries)
            return await unless_slow(subject, check(database))


async def _of_peer(subject: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    """Return the findings of a check of another service, or one that says that it took too long or
    failed itself.
    """
    try:
        async with asyncio.timeout(PEER_SECONDS):
            return await check
    except TimeoutError:
        return [
            Finding(
                Level.WARNING,
                subject,
                f"no answer within {PEER_SECONDS:g} s",
                "Check again; if that does not help, see whether this host reaches the service.",
                "Whatever depends on it waits as long.",
            )
        ]
    except Exception:
        logger.exception("the check of the %s failed", subject)
        return [
            Finding(
                Level.ERROR,
                subject,
                "the check failed with an internal error",
                "See the log of this process, which has the error.",
                "It is not known whether the service works.",
            )
        ]


def _redacted(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, message=redact(finding.message))

"""What the service tells about its own work, for metrics."""

from typing import Final

from tenantry.domain.api_keys import RevocationReason
from tenantry.domain.errors import DomainError, TokenFault
from tenantry.domain.rate_limits import Policy
from tenantry.domain.standby_checks import CheckSource


class Telemetry:
    """Receives what happens. This one drops it; `tenantry.server.metrics.Metrics` counts it."""

    def keys_revoked(self, reason: RevocationReason, number: int) -> None:
        """So many keys were revoked."""

    def credential_refused(self, kind: str, error: DomainError, fault: TokenFault | None) -> None:
        """A credential of this kind was rejected; ``fault`` is that of a bearer token."""

    def role_unknown(self) -> None:
        """A new token claims no known role."""

    def rate_limited(self, policy: Policy) -> None:
        """A request exceeds the limit of a policy."""

    def quota_exceeded(self, feature: str) -> None:
        """A request exceeds the quota of a feature."""

    def usage_written(self, requests: int) -> None:
        """The usage of so many requests was written to the database."""

    def checked(self, source: CheckSource, checks: int) -> None:
        """So many checks were answered by the primary or by a standby."""

    def change_waited(self, seconds: float, *, replayed: bool) -> None:
        """A change has waited for the standbys; whether all have replayed it."""


SILENT: Final = Telemetry()

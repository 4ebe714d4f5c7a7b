"""Prometheus metrics: of one process, or in multiprocess mode of all processes."""

import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import prometheus_client
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
    multiprocess,
)
from prometheus_client.core import GaugeMetricFamily

from tenantry import __version__
from tenantry.db.batcher import BatchObserver
from tenantry.db.standbys import Standbys
from tenantry.domain.api_keys import RevocationReason
from tenantry.domain.errors import DomainError, TokenFault
from tenantry.domain.rate_limits import Policy
from tenantry.domain.standby_checks import CheckSource
from tenantry.domain.telemetry import Telemetry
from tenantry.integrations.oidc.claim_checks import CHECKS

_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
_REQUEST_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_BATCH_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_CHANGE_WAIT_SECONDS: Final = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5)
_BATCH_ITEMS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics(Telemetry):
    """The service's metrics; docs/reference/metrics.md describes them.

    With ``several_processes`` the processes share files in the folder PROMETHEUS_MULTIPROC_DIR,
    which must be set before this module is imported.
    """

    def __init__(self, *, several_processes: bool) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        if several_processes:
            _drop_dead_worker_metrics()
            multiprocess.MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
        self._metric_registry = registry = None if several_processes else self._registry

        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        histogram = partial(Histogram, registry=registry)
        batch_seconds = partial(histogram, labelnames=["lane"], buckets=_BATCH_SECONDS)

        self.requests = counter(
            "tenantry_http_requests", "Requests answered.", ["route", "method", "status"]
        )
        self.seconds = histogram(
            "tenantry_http_request_seconds", "Time to answer.", ["route"], buckets=_REQUEST_SECONDS
        )
        self.events = counter(
            "tenantry_webhook_events", "Provider events.", ["type", "outcome", "mode"]
        )
        self.refusals = counter(
            "tenantry_webhook_refusals", "Rejected webhook requests.", ["reason"]
        )
        self.anomalies = counter(
            "tenantry_webhook_anomalies", "Unexpected contents of events.", ["kind"]
        )
        self.shed = counter("tenantry_requests_shed", "Requests rejected because of overload.")
        self.closed_by_limit = counter(
            "tenantry_client_limits_exceeded",
            "Requests and connections closed by a limit.",
            ["limit"],
        )
        self._rate_limited = counter(
            "tenantry_rate_limited", "Requests over a rate limit.", ["policy"]
        )
        self._quota_exceeded = counter(
            "tenantry_quota_exceeded", "Requests over a quota.", ["feature"]
        )
        self._usage_written = counter(
            "tenantry_usage_written", "Requests whose usage was written to the database."
        )
        self.usage_waiting = gauge(
            "tenantry_usage_waiting", "Requests whose usage is not written yet."
        )
        self._refused = counter(
            "tenantry_credentials_refused", "Rejected credentials.", ["kind", "reason"]
        )
        self._tokens_refused = counter(
            "tenantry_tokens_refused", "Refused bearer tokens.", ["reason"]
        )
        self._unknown_roles = counter(
            "tenantry_token_roles_unknown", "Verified tokens without a known role."
        )
        self._revoked = counter("tenantry_api_keys_revoked", "Revoked API keys.", ["reason"])
        for reason in RevocationReason:
            self._revoked.labels(reason)  # counters start at 0
        for check in CHECKS:
            self._tokens_refused.labels(check.word)
        self._batch_items = histogram(
            "tenantry_batch_items", "Requests in a batch.", ["lane"], buckets=_BATCH_ITEMS
        )
        self._batch_wait = batch_seconds(
            "tenantry_batch_wait_seconds", "Wait of a batch's first request."
        )
        self._batch_seconds = batch_seconds("tenantry_batch_seconds", "Duration of a batch.")
        self._connections = gauge(
            "tenantry_database_connections", "Open connections of a pool.", ["pool", "state"]
        )
        self._max_connections = gauge(
            "tenantry_database_connections_max", "Maximum connections of a pool.", ["pool"]
        )
        self._waiting = gauge(
            "tenantry_database_requests_waiting", "Requests waiting for a connection.", ["pool"]
        )
        self._waits = counter(
            "tenantry_database_waits", "Requests that had to wait for a connection.", ["pool"]
        )
        self._waited = counter(
            "tenantry_database_wait_seconds", "Total wait for connections.", ["pool"]
        )
        self._timeouts = counter(
            "tenantry_database_wait_timeouts", "Requests that got no connection.", ["pool"]
        )
        self.streams = gauge("tenantry_streams_open", "Open event streams of the dashboard.")
        Gauge(
            "tenantry_build_info",
            "1, by version.",
            ("version", "python"),
            registry=registry,
            multiprocess_mode="max",
        ).labels(__version__, platform.python_version()).set(1)

    def keys_revoked(self, reason: RevocationReason, number: int) -> None:
        self._revoked.labels(reason).inc(number)

    def credential_refused(self, kind: str, error: DomainError, fault: TokenFault | None) -> None:
        self._refused.labels(kind, error.code).inc()
        if fault is not None:
            self._tokens_refused.labels(fault.check).inc()

    def role_unknown(self) -> None:
        self._unknown_roles.inc()

    def rate_limited(self, policy: Policy) -> None:
        self._rate_limited.labels(policy).inc()

    def quota_exceeded(self, feature: str) -> None:
        self._quota_exceeded.labels(feature).inc()

    def usage_written(self, requests: int) -> None:
        self._usage_written.inc(requests)

    def checked(self, source: CheckSource, checks: int) -> None:
        self._checks.labels(source).inc(checks)

    def set_standbys(self, standbys: Standbys) -> None:
        """Record how old the newest position is, and how far the standby is behind."""
        age, lag = standbys.position_age(), standbys.lag_bytes()
        self._position_age.set(math.inf if age is None else age)
        self._standby_lag.set(math.nan if lag is None else lag)

    def change_waited(self, seconds: float, *, replayed: bool) -> None:
        self._change_waits.labels("replayed" if replayed else "lease").observe(seconds)

    # These exist only where standbys may answer checks.
    @cached_property
    def _change_waits(self) -> Histogram:
        return Histogram(
            "tenantry_change_wait_seconds",
            "Wait of a change for standbys.",
            ["outcome"],
            registry=self._metric_registry,
            buckets=_CHANGE_WAIT_SECONDS,
        )

    @cached_property
    def _checks(self) -> Counter:
        return Counter(
            "tenantry_checks",
            "Checks of keys and tokens, by where they were answered.",
            ["source"],
            registry=self._metric_registry,
        )

    @cached_property
    def _position_age(self) -> Gauge:
        return Gauge(
            "tenantry_check_position_age_seconds",
            "Age of the newest position in the primary's log.",
            registry=self._metric_registry,
            multiprocess_mode="livemax",
        )

    @cached_property
    def _standby_lag(self) -> Gauge:
        return Gauge(
            "tenantry_check_standby_lag_bytes",
            "How far the standby's last answer was behind the primary.",
            registry=self._metric_registry,
            multiprocess_mode="livemax",
        )

    def lane(self, name: str) -> BatchObserver:
        """Return the observer of a lane's batches."""
        items = self._batch_items.labels(name).observe
        wait = self._batch_wait.labels(name).observe
        seconds = self._batch_seconds.labels(name).observe

        def observe(number: int, waited: float, took: float) -> None:
            items(number)
            wait(waited)
            seconds(took)

        return observe

    def set_pool(self, pool: str, stats: Mapping[str, int]) -> None:
        """Record psycopg's statistics of a pool since the last call."""
        idle = stats["pool_available"]
        self._connections.labels(pool, "in_use").set(stats["pool_size"] - idle)
        self._connections.labels(pool, "idle").set(idle)
        self._max_connections.labels(pool).set(stats["pool_max"])
        self._waiting.labels(pool).set(stats["requests_waiting"])
        self._waits.labels(pool).inc(stats.get("requests_queued", 0))
        self._waited.labels(pool).inc(stats.get("requests_wait_ms", 0) / 1000)
        self._timeouts.labels(pool).inc(stats.get("requests_errors", 0))

    def render(self) -> bytes:
        return generate_latest(self._registry)


def render_known(known: Sequence[Metric] | None) -> bytes:
    """Render the metrics kept in the database; None while it is unreachable."""
    return generate_latest(_DatabaseCollector(known))


class _DatabaseCollector(CollectorRegistry):
    def __init__(self, known: Sequence[Metric] | None) -> None:
        super().__init__()
        up = GaugeMetricFamily(
            "tenantry_database_up", "Whether the database answers.", float(known is not None)
        )
        self._families = [up, *(known or ())]

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _drop_dead_worker_metrics() -> None:
    """Drop the gauges of processes that have ended; their counters stay."""
    for file in Path(os.environ[_FOLDER]).glob("gauge_live*_*.db"):
        pid = int(file.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            with suppress(FileNotFoundError):  # another process has dropped them
                multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
        except PermissionError:
            pass

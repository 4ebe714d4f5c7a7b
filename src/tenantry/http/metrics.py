"""Counters of one process, or, in Prometheus' multiprocess mode, of all of them together."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, multiprocess


class Metrics:
    """What the service counts.

    With ``several_processes`` each process counts into files that every one of them can read; the
    library's variable PROMETHEUS_MULTIPROC_DIR must name their folder before this module is imported.
    """

    def __init__(self, *, several_processes: bool) -> None:
        self._registry = CollectorRegistry()
        if several_processes:
            multiprocess.MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
        registry = None if several_processes else self._registry
        self.requests = Counter(
            "tenantry_http_requests", "Requests answered.", ("route", "method", "status"), registry=registry
        )
        self.seconds = Histogram(
            "tenantry_http_request_seconds", "Time to answer.", ("route",), registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
        )  # fmt: skip
        self.events = Counter(
            "tenantry_webhook_events",
            "Provider events by what became of them and the provider's mode.",
            ("type", "outcome", "mode"),
            registry=registry,
        )
        self.refusals = Counter(
            "tenantry_webhook_refusals", "Webhook requests refused, and why.", ("reason",), registry=registry
        )
        self.anomalies = Counter(
            "tenantry_webhook_anomalies", "Events that say something unexpected.", ("kind",), registry=registry
        )
        self.shed = Counter(
            "tenantry_requests_shed", "Requests refused unread, because too many were under way.", registry=registry
        )
        self.rate_limited = Counter(
            "tenantry_rate_limited", "Requests refused, by whose limit was used up.", ("policy",), registry=registry
        )

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)

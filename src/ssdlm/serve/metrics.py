"""What `GET /metrics` tells: figures of one server, for Prometheus.  worker, app -> [metrics]"""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """Counters of one server, in a registry of their own; those of texts have a model's name."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        labels = ("method", "path", "status")
        self.all_requests = Counter("ssdlm_requests", "requests answered", labels, **own)
        own["labelnames"] = ("model",)
        self.all_tokens = Counter("ssdlm_tokens", "tokens of whole texts", **own)
        self.all_passes = Counter("ssdlm_passes", "network passes, text by text", **own)
        self.num_waiting = Gauge("ssdlm_queue_texts", "texts that nobody has begun", **own)
        self.num_running = Gauge("ssdlm_running_texts", "texts being written", **own)
        self.occupancy = Gauge(
            "ssdlm_batch_occupancy", "texts being written over those that could be", **own
        )
        self.seconds_to_first_draft = Histogram(
            "ssdlm_first_draft_seconds", "from request to first pass", buckets=SECONDS, **own
        )
        self.seconds_to_last_token = Histogram(
            "ssdlm_last_token_seconds", "from request to whole texts", buckets=SECONDS, **own
        )

    def request(self, method: str, path: str, status: int) -> None:
        """Count an answer."""
        self.all_requests.labels(method, path, str(status)).inc()

    def of(self, model: str) -> ModelMetrics:
        """Return the counters of one model."""
        return ModelMetrics(self, model)

    def page(self) -> bytes:
        """Return all figures as Prometheus reads them."""
        return generate_latest(self.registry)


class ModelMetrics:
    """What is counted of the texts of one model."""

    def __init__(self, all: Metrics, model: str) -> None:
        self.all_tokens = all.all_tokens.labels(model)
        self.all_passes = all.all_passes.labels(model)
        self.num_waiting = all.num_waiting.labels(model)
        self.num_running = all.num_running.labels(model)
        self.occupancy = all.occupancy.labels(model)
        self.seconds_to_first_draft = all.seconds_to_first_draft.labels(model)
        self.seconds_to_last_token = all.seconds_to_last_token.labels(model)

    def tokens(self, number: int) -> None:
        self.all_tokens.inc(number)

    def passes(self, number: int) -> None:
        self.all_passes.inc(number)

    def waiting(self, number: int) -> None:
        self.num_waiting.set(number)

    def running(self, number: int, most: int) -> None:
        self.num_running.set(number)
        self.occupancy.set(number / most)

    def first_draft(self, seconds: float) -> None:
        self.seconds_to_first_draft.observe(seconds)

    def last_token(self, seconds: float) -> None:
        self.seconds_to_last_token.observe(seconds)

"""Read the metrics and their documentation."""

import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
_OF_HISTOGRAMS: Final = re.compile(r"_(bucket|sum|count)$")
_ROW: Final = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)


class Described(NamedTuple):
    """A metric's type and labels."""

    kind: str
    labels: frozenset[str]


Series = tuple[str, frozenset[tuple[str, str]]]
"""A sample's name and its labels with their values."""


class Shown:
    """What `/metrics` has answered."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))

    def value(self, name: str, **labels: str) -> float:
        """The value of one sample; 0 where there is none."""
        found = [
            sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        return found[0] if found else 0.0

    def series(self, names: Container[str]) -> dict[Series, float]:
        """The values of all samples of these names."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
            if sample.name in names
        }

    def described(self) -> dict[str, Described]:
        """Every metric by the name of its samples (histograms: by what they have in common)."""
        return dict(self._described())

    def _described(self) -> Iterator[tuple[str, Described]]:
        for family in self.families:
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield name, Described(family.type, frozenset(labels))


def documented() -> Mapping[str, Described]:
    """Every metric that docs/reference/metrics.md has."""
    return {
        name: Described(kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in _ROW.findall(DOCUMENT.read_text("utf-8"))
    }


def asked_for(expression: str) -> dict[str, set[str]]:
    """The metrics of an expression, and the labels by which it chooses among their samples."""
    found: dict[str, set[str]] = {}
    for name, matchers in re.findall(r"(tenantry_\w+)(?:\{([^}]*)\})?", expression):
        labels = found.setdefault(_OF_HISTOGRAMS.sub("", name), set())
        labels |= set(re.findall(r"(\w+)\s*[!=]", matchers))
    return found

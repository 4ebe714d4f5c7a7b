"""Entitlements: which features a tenant has now, and how much of each."""

from typing import Literal

from tenantry.domain.access import AccessPhase
from tenantry.domain.features import Features
from tenantry.domain.plans import Catalog

Source = Literal["plan", "addon", "grant"]


def features_of(phase: AccessPhase, catalog: Catalog) -> Features:
    """Return the features that count now, by id; an absent one is denied.

    True means that a boolean feature is given, or that another one has no limit. What has left the
    catalog does not count.
    """
    return catalog.given_features(phase.plan, phase.addons)


def has_feature(name: str, phase: AccessPhase, catalog: Catalog) -> bool:
    """Whether a tenant has a feature now."""
    return name in features_of(phase, catalog)


def source_of(name: str, phase: AccessPhase, catalog: Catalog) -> Source | None:
    """Return what a feature comes from: the plan; an add-on, also where that adds to the plan's; a
    grant, where that gives more than both. None for a feature that the tenant does not have.
    """
    given = features_of(phase, catalog).get(name)
    if given is None:
        return None
    if given == catalog.given_features(phase.plan).get(name):
        return "plan"
    return "addon"

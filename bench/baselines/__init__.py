"""The usual ways to do the same jobs, each in an environment of its own."""

from bench.baselines import node_peers, python_peers
from bench.contestant import Contestant


def contestants() -> list[Contestant]:
    """All that can run here."""
    return [*python_peers.contestants(), *node_peers.contestants()]

"""The usual ways to do the same jobs, each in a separate environment."""

from bench.baselines import node_peers, python_peers
from bench.contestant import Contestant


def contestants() -> list[Contestant]:
    """Return all peers that can run here."""
    return [*python_peers.contestants(), *node_peers.contestants()]

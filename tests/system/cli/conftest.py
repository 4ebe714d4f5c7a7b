"""Fixtures of the tests of the commands that need a browser, Node.js or other shells than bash."""

from tests.cli.conftest import entrance, home, place, premises, served

__all__ = ["entrance", "home", "place", "premises", "served"]

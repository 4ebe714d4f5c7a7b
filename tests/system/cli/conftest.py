"""Fixtures of the tests of the commands that need a browser, Node.js or other shells than bash."""

from tests.cli.conftest import home, served, sign_in_home, sign_in_services, workspace

__all__ = ["home", "served", "sign_in_home", "sign_in_services", "workspace"]

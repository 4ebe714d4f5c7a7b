"""What pytest shows of a test that failed holds no secret.

With the options that show most; `tests/system/test_plugin_suites.py` does it without options.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.suites import Suite, outcomes

FAILING = """
def test_before(tenantry):
    tenantry.events.payment_succeeded(tenantry.tenant(tenant_id="tenant-of-the-test-before"))

def test_failing(tenantry):
    tenant = tenantry.tenant()
    key, token, environment = tenant.key(), tenant.token(), tenantry.environment
    headers = key.headers
    tenantry.events.payment_succeeded(tenant)
    with open("secrets-of-failing", "w") as file:
        file.write("\\n".join([key.secret, token, environment["API_KEY_PEPPER"]]))
    assert (key, token, headers) == (None, "nothing", {})
"""
SHOWN = """
def secrets_of(tenantry, key):
    names = ("API_KEY_PEPPER", "OPERATOR_TOKEN", "PROVIDER_WEBHOOK_SECRET", "PROVIDER_SECRET_KEY")
    texts = [key.secret, tenantry.environment["TENANTRY_BASE_URL"], *(tenantry.environment[name] for name in names)]
    with open("secrets", "w") as file:
        file.write("\\n".join(texts))
    return key

def test_equal(tenantry):
    key = secrets_of(tenantry, tenantry.tenant().key())
    assert key.secret == "x"

def test_of_a_prefix(tenantry):
    key = tenantry.tenant().key()
    assert key.secret == f"{key.secret}x"

def test_not_in(tenantry):
    key = tenantry.tenant().key()
    assert key.secret not in ["x", key.secret, "y"]

def test_header(tenantry):
    assert tenantry.tenant().key().headers["Authorization"] is None

def test_headers(tenantry):
    assert dict(tenantry.tenant().key().headers) == {"Authorization": "x"}

def test_variable(tenantry):
    assert tenantry.environment["PROVIDER_WEBHOOK_SECRET"].startswith("sk_")

def test_operator(tenantry):
    tenantry.tenant(tenant_id="not an id!")

def test_subscription(tenantry):
    tenantry.provider.subscribe("cus_missing", "price_pro")
"""


class Run(NamedTuple):
    """A run of both files, and what it has shown."""

    suite: Suite
    result: pytest.RunResult

    @property
    def shown(self) -> str:
        return self.result.stdout.str()

    def secrets(self, name: str) -> list[str]:
        """The secrets that a test wrote into a file."""
        return (self.suite.folder / name).read_text().split("\n")


def run_both(folder: Path, *options: str) -> Run:
    """Run both files with these options."""
    suite = Suite(folder)
    suite.write("test_failing.py", FAILING)
    suite.write("test_shown.py", SHOWN)
    return Run(suite, suite.run(*options))


def check_log(run: Run) -> None:
    """Assert that a failed test shows the service's log of the test's duration, and no secret."""
    assert outcomes(run.result, "test_failing.py") == {
        "test_before": {"PASSED"},
        "test_failing": {"FAILED"},
    }
    run.result.stdout.fnmatch_lines(["*Captured tenantry call*", "*payment received*"])
    assert "tenant-of-the-test-before" not in run.shown
    assert [secret for secret in run.secrets("secrets-of-failing") if secret in run.shown] == []


def check_comparisons(run: Run) -> None:
    """Assert that failed tests show nothing of a secret that they compare or use."""
    assert list(outcomes(run.result, "test_shown.py").values()) == [{"FAILED"}] * 8
    key, _, *others = run.secrets("secrets")
    assert [secret for secret in (key, *others) if secret in run.shown] == []
    assert re.findall(r"svc_live_\w{10}|(?:op|whsec|sk_test)_\w{10}", run.shown) == []
    run.result.stdout.fnmatch_lines(
        ["*assert Credential(***) == 'x'", "*assert Credential(***) == '***x'"]
    )


@pytest.fixture(scope="module")
def in_full(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with all options that show more."""
    return run_both(tmp_path_factory.mktemp("suite"), "-vv", "--showlocals", "--tb=long")


@pytest.mark.thorough
def test_a_failed_test_shows_the_services_log_and_no_secret(in_full: Run) -> None:
    check_log(in_full)


def test_a_failed_test_shows_nothing_of_a_secret_that_it_compares_or_uses(in_full: Run) -> None:
    check_comparisons(in_full)


@pytest.mark.thorough
def test_settings_that_are_refused_are_not_shown(suite: Suite) -> None:
    suite.write(
        "conftest.py",
        """
        import pytest

        @pytest.fixture(scope="session")
        def tenantry_settings():
            return {"API_KEY_PEPPER": "pepper-that-missing-is-to-see", "PROVIDER_WEBHOOK_SECRET": "whsec_of_the_suite"}
        """,
    )
    suite.write("test_one.py", "def test_one(tenantry): ...")
    result = suite.run("-vv", "--showlocals", "--tb=long")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*API_KEY_PEPPER: is shorter than 32 characters*"])
    assert "pepper-that" not in result.stdout.str()
    assert "whsec_" not in result.stdout.str()

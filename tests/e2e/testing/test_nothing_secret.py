"""What pytest shows of a test that failed holds no secret."""

import re

import pytest

from tests.support.suites import Suite


def test_a_failed_test_shows_the_services_log_and_no_secret(suite: Suite) -> None:
    suite.write(
        "test_failing.py",
        """
        def test_before(tenantry):
            tenantry.events.payment_succeeded(tenantry.tenant(tenant_id="tenant-of-the-test-before"))

        def test_failing(tenantry):
            tenant = tenantry.tenant()
            key, token, environment = tenant.key(), tenant.token(), tenantry.environment
            headers = key.headers
            tenantry.events.payment_succeeded(tenant)
            with open("secrets", "w") as file:
                file.write("\\n".join([key.secret, token, environment["API_KEY_PEPPER"]]))
            assert (key, token, headers) == (None, "nothing", {})
        """,
    )
    result = suite.run("--showlocals", "-vv")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Captured tenantry call*", "*payment received*"])
    shown = result.stdout.str()
    assert "tenant-of-the-test-before" not in shown
    assert [secret for secret in (suite.folder / "secrets").read_text().split("\n") if secret in shown] == []


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
    tenantry.provider.subscribe("cus_nobody", "price_pro")
"""


@pytest.mark.parametrize("options", [(), ("-vv", "--showlocals", "--tb=long")], ids=["as-usual", "in-full"])
def test_a_failed_test_shows_nothing_of_a_secret_that_it_compares_or_uses(
    suite: Suite, options: tuple[str, ...]
) -> None:
    suite.write("test_shown.py", SHOWN)
    result = suite.run(*options)
    result.assert_outcomes(failed=8)
    shown = result.stdout.str()
    key, _, *others = (suite.folder / "secrets").read_text().split("\n")
    assert [secret for secret in (key, *others) if secret in shown] == []
    assert re.findall(r"svc_live_\w{10}|(?:op|whsec|sk_test)_\w{10}", shown) == []
    result.stdout.fnmatch_lines(["*assert Credential(***) == 'x'", "*assert Credential(***) == '***x'"])


def test_settings_that_are_refused_are_not_shown(suite: Suite) -> None:
    suite.write(
        "conftest.py",
        """
        import pytest

        @pytest.fixture(scope="session")
        def tenantry_settings():
            return {"API_KEY_PEPPER": "pepper-that-nobody-is-to-see", "PROVIDER_WEBHOOK_SECRET": "whsec_of_the_suite"}
        """,
    )
    suite.write("test_one.py", "def test_one(tenantry): ...")
    result = suite.run("-vv", "--showlocals", "--tb=long")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*API_KEY_PEPPER: is shorter than 32 characters*"])
    assert "pepper-that" not in result.stdout.str()
    assert "whsec_" not in result.stdout.str()

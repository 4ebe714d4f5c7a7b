"""Suites that use the plugin: settings, starts that fail, surroundings and event loops."""

import pytest

from tenantry_devkit.testing import StartError, running_service
from tests.support.suites import Suite, outcomes

FOR_ANOTHER_DATABASE = {
    "PGPORT": "5433",
    "PGCLIENTENCODING": "SQL_ASCII",
    "PGOPTIONS": "-c search_path=foo",
    "PGDATESTYLE": "German",
    "PGHOST": "db.example",
    "PGHOSTADDR": "127.0.0.1",
    "PGUSER": "x",
    "PGDATABASE": "x",
    "PGCONNECT_TIMEOUT": "x",
    "PGCHANNELBINDING": "require",
    "PGREQUIREAUTH": "scram-sha-256",
    "PGREQUIREPEER": "x",
    "PGGSSENCMODE": "require",
    "PGSSLNEGOTIATION": "direct",
    "PGTARGETSESSIONATTRS": "standby",
    "PGSERVICE": "x",
    "PGSERVICEFILE": "services.conf",
}
DATABASE = """
def test_database(tenantry):
    tenant = tenantry.tenant(plan="pro")
    tenantry.events.payment_failed(tenant)
    assert len(tenant.mails()) == 1
    key = tenant.key()
    key.expire()
    assert tenantry.client(key).get("/api/v1/auth/whoami").json()["code"] == "api_key_expired"
"""
PART = """
import pytest

@pytest.fixture(scope="session")
def tenantry_settings():
    return {"PARKED_MAIL_HOURS": 1}
"""
FAILING = """
import pytest

@pytest.fixture
def broken(tenantry):
    raise LookupError("it is broken")

def test_it(broken): ...

@pytest.fixture(scope="session", autouse=True)
def broken_at_the_end(tenantry_service):
    yield
    raise LookupError("it breaks in the end")
"""
ASYNC = """
import pytest

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_async(tenantry, anyio_backend):
    tenant = tenantry.tenant(plan="pro")
    tenantry.provider.card_declines(tenant.customer)
    tenantry.provider.advance(days=32)
    assert tenant.subscription_status == "past_due"
    assert len(tenant.mails()) == 1
"""
WIDE = """
import pytest
from tenantry_devkit.testing import SuiteTenantry

@pytest.fixture(scope="module")
def wide(tenantry_service):
    with SuiteTenantry(tenantry_service) as tenantry:
        yield tenantry

@pytest.fixture(scope="module")
def tenant(wide):
    return wide.tenant()

def buy(wide, tenant, plan):
    asked = wide.client(tenant.key()).post("/api/v1/billing/checkout-sessions", json={"plan": plan})
    assert asked.status_code == 201, asked.text
    *_, session = wide.provider.checkout_sessions.values()
    wide.provider.complete(session)
    wide.provider.deliver()
    assert tenant.plan == plan

def test_wide(wide, tenant):
    buy(wide, tenant, "pro")

def test_own(tenantry):
    buy(tenantry, tenantry.tenant(), "pro")

def test_wide_again(wide):
    buy(wide, wide.tenant(), "business")

def test_object_that_ended_before_the_newest(tenantry_service):
    older, newer = SuiteTenantry(tenantry_service), SuiteTenantry(tenantry_service)
    with newer:
        with older:
            pass
        buy(newer, newer.tenant(), "pro")
"""


def test_files_that_share_a_service(suite: Suite) -> None:
    """One run of several files, with variables that are meant for another database: each file shows
    another behavior, and a run takes seconds.
    """
    suite.write(
        "services.conf",
        "[x]\nhost=db.example\nport=5433\noptions=-c search_path=foo\nsslmode=require\n",
    )
    suite.write("test_async.py", ASYNC)
    suite.write("test_database.py", DATABASE)
    suite.write("part/conftest.py", PART)
    suite.write("part/test_part.py", "def test_part(tenantry): ...")
    suite.write("test_wide.py", WIDE)
    # its last error is that of the last test of the session
    suite.write("test_zz_failing.py", FAILING)
    done = suite.run(
        "test_async.py",
        "test_database.py",
        "part",
        "test_wide.py",
        "test_zz_failing.py",
        **FOR_ANOTHER_DATABASE,
    )
    # libpq's variables do not affect the tests' database
    assert outcomes(done, "test_database.py") == {"test_database": {"PASSED"}}
    # settings for a part of a session are rejected
    assert outcomes(done, "part/test_part.py") == {"test_part": {"ERROR"}}
    done.stdout.fnmatch_lines(["*The service runs with other tenantry_settings than this test's.*"])
    # a fixture that fails beside the plugin's is reported as any other
    assert outcomes(done, "test_zz_failing.py") == {"test_it": {"ERROR"}}
    done.assert_outcomes(passed=7, errors=3)
    done.stdout.fnmatch_lines(
        ["*LookupError: it is broken*", "*LookupError: it breaks in the end*"]
    )
    done.stdout.no_fnmatch_line("*INTERNALERROR*")
    # another event loop is supported
    assert outcomes(done, "test_async.py") == {
        "test_async[asyncio]": {"PASSED"},
        "test_async[trio]": {"PASSED"},
    }
    # an object of a wider scope works after a test with another
    names = (
        "test_wide",
        "test_own",
        "test_wide_again",
        "test_object_that_ended_before_the_newest",
    )
    assert outcomes(done, "test_wide.py") == {name: {"PASSED"} for name in names}


def test_suite_settings_and_catalog(suite: Suite) -> None:
    suite.write(
        "plans.toml",
        """
        [[plans]]
        id = "free"
        name = "Free"

        [[plans]]
        id = "team"
        name = "Team"
        stripe_price_id = "price_team"
        [plans.limits]
        api_keys = 1
        """,
    )
    suite.write(".env", "WORKERS=none\n")
    suite.write(
        "conftest.py",
        """
        import pathlib
        import pytest

        @pytest.fixture(scope="session")
        def tenantry_settings():
            return {
                "TENANTRY_PLANS": pathlib.Path("plans.toml"), "OIDC_AUDIENCE": "my-api",
                "OIDC_ORG_CLAIM": "https://my.example/org", "OIDC_ROLE_CLAIM": "https://my.example/role",
                "PROVIDER_SECRET_KEY": "", "LOG_FORMAT": "json",
                "API_KEY_PEPPER": "pepper-of-the-suite-0123456789abcdef,the-pepper-before-0123456789abcdef",
            }
        """,
    )
    suite.write(
        "test_settings.py",
        """
        import pytest
        from tenantry_devkit.testing import RefusedError

        def test_catalog(tenantry):
            tenant = tenantry.tenant(plan="team")
            assert tenant.plan == "team"
            tenant.key("projects:read")
            with pytest.raises(RefusedError, match="409 .*key_limit_reached"):
                tenant.key("projects:read")

        def test_plan_without_a_price(tenantry):
            with pytest.raises(ValueError, match="'pro' with a price: the catalog has free, team"):
                tenantry.tenant(plan="pro")

        def test_claims(tenantry):
            tenant = tenantry.tenant()
            known = tenantry.client(tenantry.token("mia", tenant, role="admin")).get("/api/v1/auth/whoami").json()
            assert (known["orgId"], known["scopes"]) == (tenant.id, ["*:*"])

        def test_provider_that_is_not_asked(tenantry):
            client = tenantry.client(tenantry.tenant().key())
            answer = client.post("/api/v1/billing/checkout-sessions", json={"plan": "team"})
            assert answer.json()["code"] == "provider_not_configured"

        def test_environment(tenantry):
            assert "PROVIDER_SECRET_KEY" not in tenantry.environment
            environment = tenantry.environment
            assert environment["OIDC_AUDIENCE"] == "my-api"
            assert environment["API_KEY_PEPPER"].startswith("pepper-of-the-suite")
            assert environment["TENANTRY_PLANS"].endswith("/plans.toml")
            assert environment["OIDC_ROLE_CLAIM"] == "https://my.example/role"
        """,
    )
    suite.run().assert_outcomes(passed=5)


FAULTY = [
    (
        {"WORKERS": "none", "API_KEY_PEPPER": "short"},
        r"(?s)2 setting\(s\) are faulty.*WORKERS: must be a whole number",
    ),
    (
        {"PORT": 3001, "DATABASE_URL": "x"},
        "DATABASE_URL, PORT cannot be set: the tests run these themselves",
    ),
    ({"WORKERS": None, "MAIL_FROM": None}, "tenantry_settings: MAIL_FROM, WORKERS cannot be None"),
    ({"TENANTRY_PLANS": "missing.toml"}, "TENANTRY_PLANS: .*/missing.toml cannot be read"),
]


@pytest.mark.parametrize(("given", "reason"), FAULTY)
def test_faulty_settings_are_named(given: dict[str, object], reason: str) -> None:
    with pytest.raises(StartError, match=reason), running_service(given):
        pass


def test_faulty_settings_are_named_by_every_test_that_needs_the_service(suite: Suite) -> None:
    suite.write(
        "conftest.py",
        """
        import pytest

        @pytest.fixture(scope="session")
        def tenantry_settings():
            return {"WORKERS": "none", "API_KEY_PEPPER": "short"}
        """,
    )
    suite.write(
        "test_one.py",
        """
        def test_one(tenantry): ...
        def test_other(tenantry): ...
        def test_without(): ...
        """,
    )
    result = suite.run()
    result.assert_outcomes(errors=2, passed=1)
    pytest.LineMatcher([" ".join(result.stdout.lines)]).fnmatch_lines(
        ["*2 setting(s) are faulty.*"]
    )


def test_unused_plugin_starts_nothing(suite: Suite) -> None:
    suite.write(
        "test_light.py",
        """
        import sys

        def test_light():
            heavy = {"httpx2", "litestar", "psycopg", "uvicorn", "joserfc", "tenantry.settings", "tenantry.db"}
            assert heavy & set(sys.modules) == set()
        """,
    )
    suite.run().assert_outcomes(passed=1)


def test_variable_that_breaks_the_connection_is_reported(suite: Suite) -> None:
    suite.write("test_database.py", DATABASE)
    result = suite.run(PGSERVICE="missing")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*The tests cannot reach their own database: *service*missing*not found*"]
    )

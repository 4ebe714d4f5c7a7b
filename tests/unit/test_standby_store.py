"""By which name the primary knows a standby."""

import pytest

from tenantry.db.standby_store import UnusableStandbyError, name_given_in
from tests.support.cases import cases

# as PostgreSQL 18 shows a connection; then as primary_conninfo says it
NAMES = {
    "port=5432 application_name=node 1 fallback_application_name=near sslmode=disable": "node 1",
    "port=5432 fallback_application_name=near sslmode=disable": None,
    "options=-c work_mem=64MB -c jit=off application_name=a fallback_application_name=b": "a",
    "port=5432 application_name=a fallback_application_name=b of_next_year=1": "a",
    "host=one application_name='node 1' options='-c jit=off'": "node 1",
    "host=one": None,
}


@cases(("conninfo", "name"), NAMES.items())
def test_name_of_a_standby_is_the_one_given_to_its_connection(
    conninfo: str, name: str | None
) -> None:
    assert name_given_in(conninfo) == name


def test_unknown_option_makes_a_standby_unusable_without_its_password() -> None:
    with pytest.raises(UnusableStandbyError) as refused:
        name_given_in("host=one of_next_year=1 password=swordfish")
    assert "swordfish" not in str(refused.value)

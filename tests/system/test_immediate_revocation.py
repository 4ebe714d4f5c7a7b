"""Many keys that are revoked while eight clients use them, at four processes: none is accepted again."""

from pathlib import Path
from typing import Final

from tests.e2e.test_immediate_revocation import WHAT, hammered, revocations, unlimited
from tests.support import figures
from tests.support.deployment import deployed
from tests.support.figures import RecordProperty
from tests.support.issuer import running_issuer

PROCESSES: Final = "4"
REVOCATIONS: Final = 2000


async def test_revoked_key_is_never_let_in_again(
    conninfo: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    takings, owner = revocations(conninfo, REVOCATIONS)
    async with running_issuer() as issuer:
        values = unlimited(conninfo, issuer, tmp_path, PROCESSES)
        async with deployed(values["DATABASE_URL"], tmp_path, **values) as deployment:
            sent, let_in = await hammered(deployment.base_url, takings, owner)
    figures.record(record_property, WHAT, {"requests": sent, "revocations": REVOCATIONS}, {"let in": let_in})
    assert let_in == 0

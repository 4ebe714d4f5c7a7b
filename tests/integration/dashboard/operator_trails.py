"""What an act of an operator leaves behind."""

from tenantry.domain.operator_acts import act_id_of
from tests.support.dashboard import ACME, OLGA, Dashboard


async def check_trails(
    dashboard: Dashboard, action: str, reason: str | None, org_id: str = ACME
) -> None:
    """Check that the last change of a tenant is the operator's, and that the operator's trail names
    Olga.
    """
    audited = await dashboard.execute(
        "SELECT id, action, actor_kind, actor_id, reason FROM audit_events "
        "WHERE org_id = %s ORDER BY at DESC, id DESC LIMIT 1",
        (org_id,),
    )
    [(entry_id, *entry)] = audited
    assert entry == [action, "operator", None, reason]
    acts = await dashboard.execute(
        "SELECT org_id, subject, name, reason FROM operator_acts WHERE id = %s",
        (act_id_of(entry_id),),
    )
    assert acts == [(org_id, OLGA.sub, OLGA.name, reason)]


async def count_acts(dashboard: Dashboard) -> int:
    """Return the number of acts of the operator's people."""
    [(number,)] = await dashboard.execute("SELECT count(*) FROM operator_acts")
    assert isinstance(number, int)
    return number

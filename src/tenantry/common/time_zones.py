"""Time zones: the names that this machine knows, and moments in them."""

from datetime import UTC, tzinfo
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

_NO_PLACES: Final = frozenset({"Factory", "localtime"})
"""Names that some systems have beside the IANA database's, and that mean another zone on each."""


@cache
def time_zone_names() -> frozenset[str]:
    """Return the names of the IANA time zone database, of the system or of the package tzdata.

    The first call reads the files of all zones, which takes a few milliseconds.
    """
    return frozenset(available_timezones() - _NO_PLACES)


def zone_of(name: str | None) -> tzinfo:
    """Return the zone of this name, or UTC without one; UTC too for a name that another machine
    knew and this one does not.
    """
    return ZoneInfo(name) if name in time_zone_names() else UTC

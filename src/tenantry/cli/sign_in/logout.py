"""``tenantry logout``."""

import os
from typing import NamedTuple

import click
import msgspec

from tenantry.cli.api.command import ServiceCommand
from tenantry.cli.api.sessions import FaultySessionError, Removed, Session, Sessions
from tenantry.cli.api.target import Flags, Surroundings
from tenantry.cli.exit_codes import FAILED, CommandError
from tenantry.cli.sign_in.ending import end
from tenantry.cli.text import printable


class _Kept(NamedTuple):
    sessions: Sessions
    session: Session | None
    is_faulty: bool = False


class _LogoutCommand(ServiceCommand):
    service_options = ("profile",)


@click.command("logout", cls=_LogoutCommand)
def logout(flags: Flags, *, as_json: bool) -> None:
    """End the sign-in: the refresh token at the identity provider, where it can end one, and all that was kept here.

    What was kept is removed in any case, unless another command is fetching a token. Exits with 6 if the identity
    provider is out of reach, and with 1 if what was kept cannot be read, for the refresh token then goes on until it
    ends by itself.
    """
    kept = _kept(flags)
    session = kept.session
    if session is None and not kept.is_faulty and not kept.sessions.has_tokens():
        _tell("Nobody is signed in.", None, ended=False, as_json=as_json)
        return
    with kept.sessions.alone():
        removed = kept.sessions.remove()
    can_end, faults, code = _ended(removed, session)
    place = f" of {session.base_url}" if session is not None else ""
    if faults or removed.left:
        if as_json:
            _tell("", session, ended=False, as_json=True)
        here = "Removed here" if not removed.left else f"What was kept cannot be removed: {' '.join(removed.left)}"
        there = f", but not ended there. {' '.join(faults)}" if faults else ""
        raise CommandError(here + there, FAILED if removed.left else code)
    note = "" if can_end else " The identity provider ends refresh tokens by itself alone."
    _tell(f"Signed out{place}.{note}", session, ended=can_end, as_json=as_json)


def _kept(flags: Flags) -> _Kept:
    try:
        around = Surroundings(flags, os.environ)
        return _Kept(around.sessions, around.session)
    except FaultySessionError as error:
        return _Kept(error.sessions, None, is_faulty=True)


def _ended(removed: Removed, session: Session | None) -> tuple[bool, list[str], int]:
    """Whether the refresh tokens could be ended; what went wrong, and the exit code of that."""
    can_end, faults, code = True, list(removed.unread), FAILED
    for token in removed.tokens:
        try:
            can_end = end(token, session) and can_end
        except CommandError as error:
            code = error.code if not faults else FAILED
            faults.append(str(error))
    return can_end, faults, code


def _tell(message: str, session: Session | None, *, ended: bool, as_json: bool) -> None:
    if as_json:
        service = session.base_url if session is not None else None
        click.echo(msgspec.json.encode({"service": service, "refreshTokenEnded": ended}))
    else:
        click.echo(printable(message), err=True)

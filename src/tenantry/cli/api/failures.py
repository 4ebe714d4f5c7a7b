"""What is said when a call fails, for people and for machines, and how the command then ends."""

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Final, NoReturn

import click
import msgspec

from tenantry.cli.api.sessions import StoreError
from tenantry.cli.api.target import Target
from tenantry.cli.exit_codes import FAILED, NOT_AUTHENTICATED, NOT_FOUND, OUT_OF_REACH, USAGE
from tenantry.cli.text import json_text, own_command, printable
from tenantry_sdk import Fault, errors

_CODES: Final[dict[int, int]] = {
    400: USAGE,
    401: NOT_AUTHENTICATED,
    403: NOT_AUTHENTICATED,
    404: NOT_FOUND,
    408: OUT_OF_REACH,
    422: USAGE,
    502: OUT_OF_REACH,
    503: OUT_OF_REACH,
    504: OUT_OF_REACH,
}
# These say something else than their status does.
_CODES_OF_REASONS: Final[dict[str, int]] = {"plan_limit_reached": FAILED, "provider_refused": FAILED}
_NEXT_STEPS: Final = {
    "missing_credential": "Set TENANTRY_API_KEY, pass --api-key-file, or sign in: tenantry login",
    "no_organization": "Say which one: --organization ORG. Or ask an owner to add you as a member.",
    "validation_failed": None,
    "invalid_request": None,
    "last_owner": "Make another owner or OWNER key first, or say --force.",
}
_SIGN_IN: Final = "Sign in again: tenantry login"
# RFC 6749, 5.2; OpenID Connect Core, 3.1.2.6. The identity provider takes this sign-in no more.
_ENDED: Final = {
    "signed_out",
    "invalid_grant",
    "invalid_client",
    "unauthorized_client",
    "access_denied",
    "login_required",
    "interaction_required",
    "consent_required",
}
# Asking again is of no use, and neither is signing in.
_FAULTY: Final = {"invalid_request", "invalid_scope", "invalid_target", "unsupported_grant_type"}


class Failure(msgspec.Struct, rename="camel"):
    """A failed command as it is shown; ``--json`` gives just this, below ``error``."""

    detail: str
    exit_code: int
    service: str | None = None
    code: str | None = None
    status: int | None = None
    errors: list[Fault] = []
    next_step: str | None = None
    request_id: str | None = None


def end(error: errors.TenantryError, target: Target, *, as_json: bool) -> NoReturn:
    """Say on stderr what went wrong and what to do, and exit."""
    end_with(failure_of(error, target), as_json=as_json)


def end_with(failure: Failure, *, as_json: bool) -> NoReturn:
    """The same for a failure that is known already."""
    tell(failure, as_json=as_json)
    sys.exit(failure.exit_code)


def tell(failure: Failure, *, as_json: bool) -> None:
    """Say on stderr what went wrong, and go on."""
    if as_json:
        click.echo(json_text(msgspec.json.encode({"error": failure})), err=True)
    else:
        click.echo("\n".join(_lines(failure)), err=True)


def failure_of(error: errors.TenantryError, target: Target) -> Failure:
    """What an error comes to for the one who gave the command."""
    if isinstance(error, errors.APIError):
        return _refusal(error, target)
    detail, code, next_step = str(error), FAILED, None
    match error:
        case errors.ConnectionFailedError():
            detail, code, next_step = f"There was no answer. {error}", OUT_OF_REACH, _hint(error, target)
        case errors.TokenRefreshError() if error.code in _ENDED:
            detail, code, next_step = f"Your sign-in has ended. {error}", NOT_AUTHENTICATED, _SIGN_IN
        case errors.TokenRefreshError():
            code = FAILED if error.code in _FAULTY else OUT_OF_REACH
        case StoreError():
            pass
        case errors.ConfigurationError() if target.session is not None:
            code, next_step = NOT_AUTHENTICATED, _SIGN_IN
        case errors.LostKeyError(key_id=str()):
            next_step = f"tenantry keys revoke {error.key_id}"
        case _:
            pass
    return Failure(detail, code, target.base_url.value, next_step=next_step)


def _refusal(error: errors.APIError, target: Target) -> Failure:
    return Failure(
        error.detail,
        _CODES_OF_REASONS.get(error.code, _CODES.get(error.status_code, FAILED)),
        target.base_url.value,
        error.code,
        error.status_code,
        error.errors,
        _next_step(error, target),
        error.request_id,
    )


def _next_step(error: errors.APIError, target: Target) -> str | None:
    if error.status_code == errors.AuthenticationError.status and target.session is not None:
        return _SIGN_IN
    if error.retry_after is not None:
        return f"Try again in {error.retry_after:.0f} s."
    step = _NEXT_STEPS.get(error.code, error.next_step)
    if error.status_code == errors.AuthenticationError.status and step is not None:
        return f"{step} This one is from {target.credential}."
    return step


def _hint(error: errors.ConnectionFailedError, target: Target) -> str:
    if error.idempotency_key is not None:
        return "Whether it was carried out is not known: look before you try again."
    if isinstance(error, errors.TokenTimedOutError):
        return "Try again in a moment."
    if target.demo is not None:
        return f"The demo does not seem to run. Start it: {_start_of(target.demo.folder.parent)}"
    return f"Is the address right? It is from {target.base_url.source}."


def _start_of(folder: Path) -> str:
    """What starts the demo that was started in a folder, which may be one above the current one."""
    with contextlib.suppress(OSError):
        if not folder.samefile(Path.cwd()):
            return f"cd {shlex.quote(str(folder))} && {own_command(folder)} demo"
    return f"{own_command()} demo"


def _lines(failure: Failure) -> list[str]:
    reason = f" ({failure.status} {printable(failure.code or '')})" if failure.status is not None else ""
    lines = ["\n".join(map(printable, failure.detail.split("\n"))) + reason]
    lines += [f"  {printable(fault.location)}: {printable(fault.message)}" for fault in failure.errors]
    lines += [failure.next_step] if failure.next_step else []
    if failure.service:
        request = f"request {printable(failure.request_id)} at " if failure.request_id else "at "
        lines.append(f"({request}{failure.service})")
    return lines

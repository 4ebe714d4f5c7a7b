"""``tenantry admin explain-token``, as operators run it. Its clock is the machine's, and so are the
tokens' times.
"""

import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.support.command_runner import invoke_async
from tests.support.commands import Done
from tests.support.issuer import (
    AUDIENCE,
    CLIENT_ID,
    DISCOVERY,
    JWKS,
    Answer,
    Issuer,
    running_issuer,
)
from tests.support.service import TENANTS, running_service

COMMAND = ("admin", "explain-token")


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer() as running:
        yield running


def settings(issuer: Issuer) -> dict[str, str]:
    return {"OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE, "OIDC_CLIENT_ID": CLIENT_ID}


def token(issuer: Issuer, **claims: object) -> str:
    """A token that is good for an hour from now."""
    now = int(time.time())
    return issuer.mint(claims={"iat": now, "exp": now + 3600, "org_id": "acme", **claims})


async def explain(folder: Path, text: str, *options: str, values: Mapping[str, str]) -> Done:
    file = folder / "token.txt"
    file.write_text(text)
    return await invoke_async(
        *COMMAND, "--token-file", str(file), *options, folder=folder, **values
    )


async def test_a_good_token(tmp_path: Path, issuer: Issuer) -> None:
    sent = token(issuer)
    done = await explain(tmp_path, f"{sent}\n", values=settings(issuer))
    assert (done.code, done.err) == (0, "")
    assert "failed" not in done.out
    origin = "the token has no org_role, so the default counts"
    assert done.out.endswith(f"\nValid; no tenant was looked at. The role is member: {origin}.\n")
    assert not [part for part in sent.split(".") if part in done.out]


async def test_a_good_token_of_a_tenant(tmp_path: Path, conninfo: str, database_url: str) -> None:
    async with running_service(conninfo) as service:
        await service.operator.put(
            f"{TENANTS}/acme", {"name": "Acme", "ownerEmail": "owner@acme.example"}
        )
        values = {**settings(service.issuer), "DATABASE_URL": database_url}
        done = await explain(tmp_path, token(service.issuer), "--json", values=values)
        mismatch = await explain(tmp_path, token(service.issuer), "--org", "other", values=values)
    assert done.code == 0
    assert json.loads(done.out)["standing"] == {
        "tenantKnown": True,
        "orgId": "acme",
        "role": "member",
        "roleOrigin": "the token has no org_role, so the default counts",
        "scopes": ["projects:*", "tenants:read", "billing:read"],
        "accessLevel": "SCOPED",
        "plan": "free",
        "subscriptionStatus": "none",
    }
    assert mismatch.code == 4
    assert mismatch.out.endswith("Refused: the service answers 403 org_mismatch.\n")


async def test_rejected_token(tmp_path: Path, issuer: Issuer) -> None:
    done = await explain(tmp_path, token(issuer, aud="other"), "--json", values=settings(issuer))
    assert (done.code, done.err) == (4, "")
    document = json.loads(done.out)
    assert (document["valid"], document["status"], document["code"]) == (
        False,
        401,
        "invalid_credential",
    )
    assert [check for check in document["checks"] if check["result"] == "failed"] == [
        {
            "name": "audience",
            "result": "failed",
            "said": '"other"',
            "expected": '"tenantry-api", or a list with it',
            "reason": "wrong audience",
        }
    ]
    assert (document["claims"]["aud"], document["claimsProven"]) == ("other", True)


async def test_oversized_token_is_named_with_the_limit(tmp_path: Path, issuer: Issuer) -> None:
    done = await explain(tmp_path, token(issuer, groups="x" * 13_000), values=settings(issuer))
    assert done.code == 4
    (line,) = [line for line in done.out.splitlines() if line.startswith("failed")]
    assert line.endswith(
        "(expected: at most 16,384 characters): too long: at most 16,384 characters"
    )


@pytest.mark.parametrize(("claim", "check"), [("aud", "audience"), ("sub", "claims")])
async def test_absent_claim_is_named(
    tmp_path: Path, issuer: Issuer, claim: str, check: str
) -> None:
    done = await explain(tmp_path, token(issuer, **{claim: None}), values=settings(issuer))
    (line,) = [line for line in done.out.splitlines() if line.startswith("failed")]
    assert line.split()[1] == check
    assert line.endswith(f": {claim} is absent")


async def test_token_of_a_directory_whose_client_is_the_audience(
    tmp_path: Path, issuer: Issuer
) -> None:
    template = issuer.url + "/{tenantid}/v2.0"
    document = {"issuer": template, "jwks_uri": issuer.url + JWKS}
    issuer.answers["/organizations/v2.0" + DISCOVERY] = Answer(200, json.dumps(document).encode())
    values = {
        "OIDC_ISSUER": template,
        "OIDC_DIRECTORIES": "dir-1,dir-2",
        "OIDC_AUDIENCE": "spa",
        "OIDC_AUDIENCE_CLAIM": "azp",
        "OIDC_ROLE_CLAIM": "roles",
        "OIDC_ROLE_MAP": "Owner=owner",
    }
    claims = {
        "iss": f"{issuer.url}/dir-2/v2.0",
        "tid": "dir-2",
        "aud": None,
        "azp": "spa",
        "roles": ["Reader", "Owner"],
    }
    done = await explain(tmp_path, token(issuer, **claims), values=values)
    assert done.code == 0
    assert '\n  tid     "dir-2"\n' in done.out
    assert '\n  azp     "spa"\n' in done.out
    assert done.out.endswith('The role is owner: roles is ["Reader", "Owner"].\n')
    unknown = await explain(
        tmp_path, token(issuer, **{**claims, "roles": ["Reader"]}), values=values
    )
    origin = 'roles is ["Reader"], which is none of Owner: map it with OIDC_ROLE_MAP'
    assert unknown.out.endswith(f"The role is member: {origin}.\n")


async def test_the_provider_is_out_of_reach(tmp_path: Path, issuer: Issuer) -> None:
    await issuer.stop()
    done = await explain(tmp_path, token(issuer), values=settings(issuer))
    assert (done.code, done.err) == (6, "")
    assert "the provider's keys are unavailable: ConnectError" in done.out
    assert done.out.endswith("Refused: the service answers 503 auth_unavailable.\n")


@pytest.mark.parametrize(
    ("before", "arguments"),
    [("", ()), ("Bearer ", ("-",)), ("\nbearer  ", ())],
    ids=["plain", "dash", "with scheme"],
)
async def test_the_token_comes_on_standard_input(
    tmp_path: Path, issuer: Issuer, before: str, arguments: tuple[str, ...]
) -> None:
    sent = f"{before}{token(issuer)}\n"
    done = await invoke_async(*COMMAND, *arguments, folder=tmp_path, given=sent, **settings(issuer))
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(
    "sent", [b"svc_live_" + b"A" * 49, b"\xff\xfe\x00", b"x" * 5_000_000, b"\x1b[2Ja.b.c"]
)
async def test_other_input_is_rejected_and_not_shown(
    tmp_path: Path, issuer: Issuer, sent: bytes
) -> None:
    done = await invoke_async(*COMMAND, folder=tmp_path, given=sent, **settings(issuer))
    assert (done.code, done.err) == (4, "")
    assert "svc_live_" not in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize("sent", [b"", b" \n"])
async def test_missing_token_is_a_usage_error(tmp_path: Path, issuer: Issuer, sent: bytes) -> None:
    done = await invoke_async(*COMMAND, folder=tmp_path, given=sent, **settings(issuer))
    assert done.code == 2
    assert "There is no token" in done.err


async def test_token_on_the_command_line_is_rejected_and_not_shown(
    tmp_path: Path, issuer: Issuer
) -> None:
    sent = token(issuer)
    done = await invoke_async(*COMMAND, sent, folder=tmp_path, **settings(issuer))
    assert (done.code, done.out) == (2, "")
    assert "not on the command line" in done.err
    assert sent not in done.err


async def test_faulty_settings_are_named(tmp_path: Path, issuer: Issuer) -> None:
    done = await explain(
        tmp_path, token(issuer), values={"OIDC_ISSUER": "http://login.example.com"}
    )
    assert done.code == 1
    assert "OIDC_AUDIENCE: is missing" in done.err
    assert "OIDC_ISSUER: must be https" in done.err


async def test_missing_identity_provider_is_reported(tmp_path: Path, issuer: Issuer) -> None:
    done = await explain(tmp_path, token(issuer), values={})
    assert done.code == 1
    assert "No identity provider is set" in done.err

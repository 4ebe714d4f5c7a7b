"""The credentials and secrets of the TypeScript client."""

import pytest

from tests.sdk.sdk_support import Served
from tests.support.service import Organization
from tests.support.typescript_client import Package, key_of


async def test_credential_is_in_no_output(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        import { inspect } from "node:util";

        const shown = (value) => inspect(value, { depth: Infinity, showHidden: true });
        const broken = (apiKey) => Promise.resolve().then(() => new Tenantry({ baseUrl, apiKey }));
        const failed = [broken(`${apiKey}\\u0100 x`), tenantry.projects.get({ projectId: "x" })].map(rejection);
        const away = tenantry.withOptions({ headers: { "X-Token": apiKey }, timeout: 1 });
        failed.push(rejection(away.apiKeys.get({ keyId: apiKey })));
        const called = await tenantry.auth.whoami().withResponse();
        print([tenantry, ...(await Promise.all(failed)), away, called, called.response, tenantry.projects].flatMap(
            (value) => [shown(value), JSON.stringify(value), String(value)]));
    """
    key = key_of(acme)
    texts = await package.result_of(program, served.url, key)
    assert [text for text in texts if key[12:] in text] == []
    assert texts[0] == texts[2] == f"Tenantry({served.url})"
    assert "ConfigurationError: apiKey is not a credential" in texts[3]
    assert "GET /api/v1/api-keys/**********" in texts[9]


async def test_secret_of_a_new_key_is_masked_wherever_it_is_printed(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        import { format, inspect } from "node:util";

        const { orgId } = await tenantry.auth.whoami();
        const key = await tenantry.apiKeys.create({ orgId, name: "x", scopes: ["api-keys:write"] });
        const own = new Tenantry({ baseUrl, apiKey: key.secret });
        const shown = (value) => [inspect(value, { depth: Infinity, showHidden: true }), JSON.stringify(value),
            format("%s %o %j", value, value, value)];
        const printed = [key, key.secret, { nested: [key] }, own].flatMap(shown);
        printed.push(`${key.secret}`, "" + key.secret, String(key.secret), Object.values(key).join());
        const { id } = await own.auth.whoami();
        const rotated = await own.apiKeys.rotate({ keyId: id });
        const reported = await tenantry.apiKeys.reportLeak({ secret: rotated.secret });
        const secrets = [key, rotated].map(({ secret }) => secret.reveal());
        print({ secrets, printed, same: id === key.id, isSecret: key.secret instanceof Secret, status: reported.status,
            json: JSON.parse(JSON.stringify(rotated)).secret });
    """
    result = await package.result_of(program, served.url, key_of(acme))
    assert [secret[:9] for secret in result["secrets"]] == ["svc_live_"] * 2
    assert [text for text in result["printed"] if result["secrets"][0][13:54] in text] == []
    assert (result["same"], result["isSecret"], result["status"]) == (True, True, "revoked")
    assert result["json"] == "**********"


async def test_credential_comes_from_one_place(package: Package, served: Served) -> None:
    program = """
        const options = [{ apiKey: "a", tokens: () => "b" }, { apiKey: "a b" }, { apiKey: "" }, { baseUrl: "ftp://x" }];
        print(options.map((one) => { try { new Tenantry({ baseUrl, ...one }); } catch (error) {
            return [error instanceof ConfigurationError, error.name]; } }));
    """
    assert await package.result_of(program, served.url) == [[True, "ConfigurationError"]] * 4


@pytest.mark.parametrize(
    "address",
    [
        "http://accounts.example.com",
        "https://user:word@accounts.example.com",
        "ftp://x",
        "accounts",
        "",
    ],
)
async def test_credentials_go_to_safe_addresses_only(package: Package, address: str) -> None:
    with pytest.raises(AssertionError, match="baseUrl"):
        await package.result_of("", address, "svc_live_x")

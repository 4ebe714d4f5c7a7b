"""Webhook signatures in the TypeScript client."""

import base64
import json

from tenantry_sdk import webhooks as python_webhooks
from tests.sdk.sdk_support import Served
from tests.support.typescript_client import Package
from tests.support.webhook_vectors import (
    BODY,
    DELIVERIES,
    NO_EVENTS,
    NOW,
    SECRET,
    SECRETS,
    TEXTS,
    signed,
)


async def test_webhooks_are_judged_as_by_the_python_sdk(package: Package, served: Served) -> None:
    program = """
        import { readFileSync } from "node:fs";

        const { deliveries, bodies, body, secret, now } = JSON.parse(readFileSync("vectors.json", "utf-8"));
        const judge = async (...given) => {
            try { return (await webhooks.verify(...given)).id; } catch (error) { return [error.name, error.reason]; }
        };
        const bytes = (base64) => new Uint8Array(Buffer.from(base64, "base64"));
        print({
            deliveries: await Promise.all(deliveries.map((headers) => judge(body, headers, secret, { now }))),
            bodies: await Promise.all(bodies.map(([one, headers]) => judge(bytes(one), headers, secret, { now }))),
        });
    """
    vectors = {
        "deliveries": [delivery.headers for delivery in DELIVERIES],
        "bodies": [(base64.b64encode(body).decode(), signed(body)) for body in NO_EVENTS],
        "body": BODY.decode(),
        "secret": SECRET,
        "now": NOW,
    }
    (package.folder / "vectors.json").write_text(json.dumps(vectors))
    judged = await package.result_of(program, served.url)
    for delivery, result in zip(DELIVERIES, judged["deliveries"], strict=True):
        if delivery.reason is None:
            assert result == "evt_1", delivery
        else:
            assert result[0] == "SignatureError", delivery
            assert delivery.reason in result[1], delivery
    assert judged["bodies"] == [["PayloadError", None]] * len(NO_EVENTS)


async def test_signatures_are_those_of_the_python_sdk(package: Package, served: Served) -> None:
    program = """
        import { readFileSync } from "node:fs";

        const { texts, secrets, at } = JSON.parse(readFileSync("texts.json", "utf-8"));
        const bodies = texts.map((text) => new Uint8Array(Buffer.from(text, "base64")));
        const sign = (body, secret) => webhooks.sign(body, secret, { at: new Date((at + 0.9) * 1000) });
        print(await Promise.all(bodies.flatMap((body) => secrets.map((secret) => sign(body, secret)))));
    """
    texts = [base64.b64encode(text).decode() for text in TEXTS]
    (package.folder / "texts.json").write_text(
        json.dumps({"texts": texts, "secrets": SECRETS, "at": NOW})
    )
    assert await package.result_of(program, served.url) == [
        python_webhooks.sign(text, secret, at=NOW) for text in TEXTS for secret in SECRETS
    ]


async def test_webhook_verification_takes_what_servers_have(
    package: Package, served: Served
) -> None:
    program = """
        const body = '{"type": "x", "data": {"object": {"name": "Zo\u00eb"}}}';
        const header = await webhooks.sign(body, new Secret("whsec_new"));
        const verify = async (...given) => {
            try { return (await webhooks.verify(...given)).data.object.name; } catch (error) { return error.name; }
        };
        const bytes = new TextEncoder().encode(body);
        const inHeaders = new Headers({ "Provider-Signature": header });
        const twice = new Headers([["Provider-Signature", header], ["Provider-Signature", header]]);
        print(await Promise.all([
            verify(body, inHeaders, "whsec_new"),
            verify(bytes, { "provider-signature": [header] }, ["whsec_old", new Secret("whsec_new")]),
            verify(bytes.buffer, { "PROVIDER-SIGNATURE": header }, new Secret("whsec_new")),
            verify(Buffer.from(body), inHeaders, "whsec_new", { tolerance: 1000 }),
            verify(body, inHeaders, "whsec_old"),
            verify(body, twice, "whsec_new"),
            verify(body, { "provider-signature": [header, header] }, "whsec_new"),
            verify(body, inHeaders, "whsec_new", { tolerance: NaN }),
            ...["", " ", [], ["", "whsec_new"], new Secret(""), [undefined]].map((no) => verify(body, inHeaders, no)),
        ]));
    """
    accepted, rejected = ["Zoë"] * 4, ["SignatureError"] * 4
    assert await package.result_of(program, served.url) == [
        *accepted,
        *rejected,
        *["TypeError"] * 6,
    ]

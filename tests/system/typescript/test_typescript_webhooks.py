"""Webhook signatures in the TypeScript client."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import pytest

from tenantry_sdk import webhooks as python_webhooks
from tests.sdk.sdk_support import Served
from tests.support.typescript_client import Package
from tests.support.webhook_vectors import (
    BODY,
    DELIVERIES,
    NO_CHANGES,
    NO_EVENTS,
    NOT_OWN_SECRETS,
    NOW,
    OWN_BODY,
    OWN_DELIVERIES,
    OWN_SECRET,
    SECRET,
    SECRETS,
    TEXTS,
    Delivery,
    sent,
    signed,
)


class Sender(NamedTuple):
    """Requests of one sender, and the function that verifies them."""

    verifier: str
    deliveries: Sequence[Delivery]
    no_events: Sequence[bytes]
    sign: Callable[[bytes], dict[str, str]]
    body: bytes
    secret: str


PROVIDER: Final = Sender("verifyProviderEvent", DELIVERIES, NO_EVENTS, signed, BODY, SECRET)
TENANTRY: Final = Sender("unwrap", OWN_DELIVERIES, NO_CHANGES, sent, OWN_BODY, OWN_SECRET)


@pytest.mark.parametrize("sender", [PROVIDER, TENANTRY], ids=lambda sender: sender.verifier)
async def test_webhooks_are_judged_as_by_the_python_sdk(
    package: Package, served: Served, sender: Sender
) -> None:
    program = """
        import { readFileSync } from "node:fs";

        const { verifier, deliveries, bodies, body, secret, now } = JSON.parse(readFileSync("vectors.json", "utf-8"));
        const judge = async (...given) => {
            try { return (await webhooks[verifier](...given)).id; } catch (error) { return [error.name, error.reason]; }
        };
        const bytes = (base64) => new Uint8Array(Buffer.from(base64, "base64"));
        print({
            deliveries: await Promise.all(deliveries.map((headers) => judge(body, headers, secret, { now }))),
            bodies: await Promise.all(bodies.map(([one, headers]) => judge(bytes(one), headers, secret, { now }))),
        });
    """
    vectors = {
        "verifier": sender.verifier,
        "deliveries": [delivery.headers for delivery in sender.deliveries],
        "bodies": [
            (base64.b64encode(body).decode(), sender.sign(body)) for body in sender.no_events
        ],
        "body": sender.body.decode(),
        "secret": sender.secret,
        "now": NOW,
    }
    (package.folder / "vectors.json").write_text(json.dumps(vectors))
    judged = await package.result_of(program, served.url)
    for delivery, result in zip(sender.deliveries, judged["deliveries"], strict=True):
        if delivery.reason is None:
            assert result == json.loads(sender.body)["id"], delivery
        else:
            assert result[0] == "SignatureError", delivery
            assert delivery.reason in result[1], delivery
    assert judged["bodies"] == [["PayloadError", None]] * len(sender.no_events)


async def test_faulty_arguments_are_told_without_a_secret(package: Package, served: Served) -> None:
    program = """
        import { readFileSync } from "node:fs";

        const { body, headers, now, secrets } = JSON.parse(readFileSync("faulty.json", "utf-8"));
        const told = async (...given) => {
            try { await webhooks.unwrap(...given); } catch (error) { return `${error.name}: ${error.message}`; }
        };
        print([
            await Promise.all(secrets.map((secret) => told(body, headers, ["", secret].slice(1), { now }))),
            await told(JSON.parse(body), headers, secrets[0], { now }),
            await told(undefined, headers, secrets[0], { now }),
        ]);
    """
    vectors = {"body": OWN_BODY.decode(), "headers": sent(), "now": NOW, "secrets": NOT_OWN_SECRETS}
    (package.folder / "faulty.json").write_text(json.dumps(vectors))
    of_secrets, parsed, missing = await package.result_of(program, served.url)
    form = "TypeError: a secret of tenantry's webhooks is whsec_ and base64 of 24 to 64 bytes"
    assert of_secrets == [form] * len(NOT_OWN_SECRETS)
    assert parsed == missing
    assert parsed.startswith("TypeError: body must be the raw body")


async def test_signatures_are_those_of_the_python_sdk(package: Package, served: Served) -> None:
    program = """
        import { readFileSync } from "node:fs";

        const { texts, secrets, at } = JSON.parse(readFileSync("texts.json", "utf-8"));
        const bodies = texts.map((text) => new Uint8Array(Buffer.from(text, "base64")));
        const sign = (body, secret) => webhooks.signProviderEvent(body, secret, { at: new Date((at + 0.9) * 1000) });
        print(await Promise.all(bodies.flatMap((body) => secrets.map((secret) => sign(body, secret)))));
    """
    texts = [base64.b64encode(text).decode() for text in TEXTS]
    (package.folder / "texts.json").write_text(
        json.dumps({"texts": texts, "secrets": SECRETS, "at": NOW})
    )
    assert await package.result_of(program, served.url) == [
        python_webhooks.sign_provider_event(text, secret, at=NOW)
        for text in TEXTS
        for secret in SECRETS
    ]


async def test_webhook_verification_takes_what_servers_have(
    package: Package, served: Served
) -> None:
    program = """
        const body = '{"type": "x", "data": {"object": {"name": "Zo\u00eb"}}}';
        const header = await webhooks.signProviderEvent(body, new Secret("whsec_new"));
        const verify = async (...given) => {
            try { return (await webhooks.verifyProviderEvent(...given)).data.object.name; }
            catch (error) { return error.name; }
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

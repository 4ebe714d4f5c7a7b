"""A full run, with everything that goes wrong in one; then a search for each of its secrets in all
that it left.

`tests/system/test_nothing_secret_in_text_logs.py` does it with the log format for people.
"""

import asyncio
import base64
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support import events, figures
from tests.support.collector import Collector, running_collector
from tests.support.commands import Running, run, running
from tests.support.database_link import DatabaseLink, database_link
from tests.support.issuer import AUDIENCE, CLIENT_ID, Issuer, running_issuer, signing_key
from tests.support.ports import free_port
from tests.support.postgres import as_url
from tests.support.provider_api import KEY as PROVIDER_KEY
from tests.support.provider_api import ProviderServer, refusal, running_provider
from tests.support.secrecy import Secrets, dump, forms
from tests.support.service import KEYS, PROJECTS, TENANTS, VERIFY, WHOAMI
from tests.support.signing import deliver
from tests.support.smtp import LOOPBACK, MailServer, Received
from tests.support.smtp import running as running_mail
from tests.support.webhook_endpoint import WebhookServer, answer, running_webhook_server

ORG: Final = "acme"
REPORT: Final = f"{KEYS}/report-leak"
CHECKOUT: Final = "/api/v1/billing/checkout-sessions"
PORTAL: Final = "/api/v1/billing/portal-sessions"
WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
SMTP_USER: Final = "mailer"
SETTINGS: Final = {
    "webhook secret": "whsec_Qm9va3NTaGVsdmVzMDEyMzQ1",
    "older webhook secret": "whsec_T2xkU2hlbHZlczAxMjM0NTY3",
    "pepper": "pepper of Zanzibar: 8 grams & more 0123",
    "older pepper": "older-pepper-of-Malabar-0123456789-abcd",
    "session secret": "session/secret+of=the%run-0123456789abc",
    "operator token": "operator-token-of-the-run-9f8e7d6c5b4a",
    "mail password": "Mail p@ss/word: 50% more",
    "provider key": PROVIDER_KEY,
    "client secret": "client-secret-of-the-run-1a2b3c4d5e6f",
    "database password": "database-password-of-the-run",
    "collector token": "token-of-the-collector-2b3c4d5e",
    "secret of an endpoint": "whsec_QWNtZUVuZHBvaW50c09mTm92ZW1iZXI5ODc2NTQz",
    "token in an endpoint's address": "token-of-the-endpoint-3c4d5e6f",
}


class Everything:
    """The running service with all that is around it, and what its callers see."""

    def __init__(self, secrets: Secrets, base_url: str, issuer: Issuer) -> None:
        self.secrets = secrets
        self.issuer = issuer
        self.client = httpx2.AsyncClient(
            base_url=base_url, trust_env=False, timeout=30, event_hooks={"response": [self._keep]}
        )

    async def _keep(self, answer: httpx2.Response) -> None:
        """Keep an answer, without the one secret that it is there to show."""
        body = await answer.aread()
        if answer.status_code == 201 and b'"secret"' in body:
            shown = self.secrets.add(f"key {answer.json()['id']}", answer.json()["secret"])
            body = body.replace(shown.encode(), b"")
        head = b"".join(b"%b: %b\n" % header for header in answer.headers.raw)
        self.secrets.keep("answers", b"%d\n%b\n%b" % (answer.status_code, head, body))

    def token(self, name: str, **claims: object) -> str:
        """A token of the owner, valid for an hour unless told otherwise."""
        now = int(time.time())
        said = {
            "org_id": ORG,
            "org_role": "owner",
            "sub": "user_1",
            "iat": now,
            "exp": now + 3600,
            **claims,
        }
        return self.secrets.add(name, self.issuer.mint(claims=said))

    async def call(
        self,
        method: str,
        path: str,
        credential: str | None = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> httpx2.Response:
        """A request, kept with its answer."""
        given = {"Authorization": f"Bearer {credential}"} if credential else {}
        return await self.client.request(method, path, headers={**given, **(headers or {})}, **more)

    async def key(self, maker: str, *scopes: str, **fields: object) -> tuple[str, str]:
        """A new key: its id and its secret."""
        body = {"orgId": ORG, "name": "key", "scopes": scopes, **fields}
        made = await self.call("POST", KEYS, maker, json=body)
        assert made.status_code == 201, made.text
        return made.json()["id"], made.json()["secret"]

    async def deliver(self, event: dict[str, Any], name: str, **more: Any) -> httpx2.Response:
        """Send an event, signed with the secret of this name."""
        return await deliver(self.client, event, secret=SETTINGS[name], at=int(time.time()), **more)


@pytest.mark.parametrize("log_format", ["json", "console"])
async def test_no_secret_of_a_full_run_is_left_anywhere(
    conninfo: str, tmp_path: Path, log_format: str, record_property: figures.RecordProperty
) -> None:
    secrets = Secrets()
    for name, secret in SETTINGS.items():
        secrets.add(name, secret)
    await full_run(secrets, conninfo, tmp_path, log_format)
    for name, table in (await dump(conninfo)).items():
        secrets.keep(f"table {name}", table)
    secrets.keep("log of the database server", server_log(conninfo).read_bytes())
    written = secrets.places["service, err"] + secrets.places["worker, err"]
    for what in (
        b"Traceback",
        b"UndefinedTable",
        b"webhook refused",
        b"interrupted",
        b"tenantry.requests",
    ):
        assert what in written, what  # the run has had its troubles
    assert {
        "public.api_keys",
        "public.audit_events",
        "public.mails",
        "public.procrastinate_events",
    } <= {place.removeprefix("table ") for place in secrets.places}
    assert secrets.traces() == []
    figures.record(
        record_property,
        "Secrets of a full run, in logs, answers, database, mails",
        {
            "searches": secrets.searches,
            "secrets": len(secrets.known),
            "bytes": sum(map(len, secrets.places.values())),
        },
        {"found": len(secrets.traces())},
    )


def server_log(conninfo: str) -> Path:
    """What the database server itself has to say, statements that failed included."""
    return Path(str(conninfo_to_dict(conninfo)["host"])).parent / "postgres.log"


async def full_run(secrets: Secrets, conninfo: str, folder: Path, log_format: str) -> None:
    """Everything that the service does, done well and badly; all that can be seen of it is kept."""
    async with (
        running_collector() as collector,
        surroundings(conninfo) as (link, issuer, mail, provider),
        running_webhook_server() as receiver,
    ):
        values = {
            **settings(link, issuer, mail, provider, log_format),
            **told_to(collector),
            "TENANTRY_PLANS": write_catalog(folder, receiver),
        }
        async with (
            running("serve", "--no-jobs", folder=folder, **values) as service,
            running("worker", folder=folder, **values) as worker,
        ):
            await service.until("tenantry is ready", "err")
            run_of = Everything(secrets, values["BASE_URL"], issuer)
            async with run_of.client:
                await work(run_of, link, mail, provider, worker, conninfo)
                secrets.keep("metrics", (await run_of.call("GET", "/metrics")).content)
            for words in (["doctor"], ["webhooks", "list"], ["webhooks", "test", "app"]):
                done = await run(*words, folder=folder, **values)
                secrets.keep(" ".join(words), done.out + done.err)
                assert "Traceback" not in done.err
            await worker.until("webhook app: attempt 1 ", "err")
            for name, command in (("service", service), ("worker", worker)):
                assert await command.end(signal.SIGTERM) == 0
                for stream, text in command.text.items():
                    secrets.keep(f"{name}, {stream}", text)
        assert {"send mail", "POST payment provider", "POST webhook receiver", "batch keys"} <= {
            span.name for span in collector.spans
        }
        secrets.keep("traces", collector.raw)
        for received in mail.received:
            secrets.keep("mails", received.message.as_bytes())
            secrets.keep("mails", received.part("plain") + received.part("html"))


def write_catalog(folder: Path, receiver: WebhookServer) -> str:
    """Write a catalog with an endpoint, which repeats the secret that it refuses."""
    secret = SETTINGS["secret of an endpoint"]
    receiver.response = answer(401, f"X-Secret: {secret}", body=secret.encode())
    token = SETTINGS["token in an endpoint's address"]
    endpoint = f"""
[[webhooks]]
name = "app"
url = "{receiver.url}?token={token}"
types = ["tenant.*", "member.*", "api_key.*", "audit.*"]
secrets = ["{secret}"]
allow_private = true
"""
    packaged = resources.files("tenantry").joinpath("plans.toml").read_text("utf-8")
    path = folder / "plans.toml"
    path.write_text(packaged + endpoint)
    return str(path)


ClientConfiguration = tuple[DatabaseLink, Issuer, MailServer, ProviderServer]


@asynccontextmanager
async def surroundings(conninfo: str) -> AsyncIterator[ClientConfiguration]:
    """What the service depends on."""
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(database_link(conninfo))
        issuer = await stack.enter_async_context(running_issuer())
        mail = MailServer(account=(SMTP_USER, SETTINGS["mail password"]))
        await stack.enter_async_context(running_mail(mail))
        yield link, issuer, mail, await stack.enter_async_context(running_provider())


def settings(
    link: DatabaseLink, issuer: Issuer, mail: MailServer, provider: ProviderServer, log_format: str
) -> dict[str, str]:
    """The settings of the run."""
    port = free_port()
    password = quote(SETTINGS["mail password"], safe="")
    return {
        "DATABASE_URL": as_url(
            make_conninfo(link.conninfo, password=SETTINGS["database password"])
        ),
        "PORT": str(port),
        "BASE_URL": f"http://127.0.0.1:{port}",
        "LOG_FORMAT": log_format,
        "PROVIDER_WEBHOOK_SECRET": f"{SETTINGS['webhook secret']},{SETTINGS['older webhook secret']}",
        "API_KEY_PEPPER": f"{SETTINGS['pepper']},{SETTINGS['older pepper']}",
        "SESSION_SECRET": SETTINGS["session secret"],
        "OPERATOR_TOKEN": SETTINGS["operator token"],
        "OIDC_ISSUER": issuer.url,
        "OIDC_AUDIENCE": AUDIENCE,
        "OIDC_CLIENT_ID": CLIENT_ID,
        "OIDC_CLIENT_SECRET": SETTINGS["client secret"],
        "SMTP_URL": f"smtp://{SMTP_USER}:{password}@{LOOPBACK}:{mail.port}",
        "MAIL_FROM": "billing@acme.example",
        "INVITATIONS": "true",
        "PROVIDER_SECRET_KEY": PROVIDER_KEY,
        "PROVIDER_API_BASE": provider.url,
        "PYTHONASYNCIODEBUG": "1",
        "PYTHONWARNINGS": "default",
    }


def told_to(collector: Collector) -> dict[str, str]:
    """Settings by which everything is traced, and every request has its line in the log."""
    header = quote(f"Bearer {SETTINGS['collector token']}")
    return collector.settings(
        OTEL_EXPORTER_OTLP_HEADERS=f"authorization={header}", LOG_REQUESTS="true"
    )


async def work(
    run_of: Everything,
    link: DatabaseLink,
    mail: MailServer,
    provider: ProviderServer,
    worker: Running,
    conninfo: str,
) -> None:
    """Keys, tokens, events, mails, sessions and failures, in turn."""
    tenant = {"name": "Acme", "ownerEmail": "owner@acme.example", "stripeCustomerId": "cus_acme"}
    operator = SETTINGS["operator token"]
    assert (await run_of.call("PUT", f"{TENANTS}/{ORG}", operator, json=tenant)).status_code == 201
    owner = run_of.token("token of the owner")
    _, key = await run_of.key(owner, "*:*")
    await everywhere(run_of, owner, [key, owner, operator])
    await opaque_everywhere(run_of, owner, list(SETTINGS.values()))
    await key_lifetimes(run_of, owner)
    await bad_tokens(run_of, owner)
    await webhooks_and_mails(run_of, mail, worker)
    await sessions(run_of, owner, provider)
    await leaks(run_of, owner, mail)
    await invitations(run_of, owner, mail)
    assert (await run_of.call("GET", f"{TENANTS}/{ORG}/export", operator)).status_code == 200
    await broken_database(run_of, key, conninfo)
    await absent_database(run_of, key, link, worker)
    await absent_issuer(run_of)


async def everywhere(run_of: Everything, good: str, credentials: list[str]) -> None:
    """Credentials in the right place and in every wrong one."""
    for credential in credentials:
        for path in (
            WHOAMI,
            PROJECTS,
            KEYS,
            TENANTS,
            f"{VERIFY}projects:read",
            "/api/v1/audit-events",
            "/nowhere",
        ):
            await run_of.call("GET", path, credential)
        for authorization in (
            credential,
            f"Token {credential}",
            f"Basic {in_base64(f'me:{credential}')}",
        ):
            await run_of.call("GET", WHOAMI, headers={"Authorization": authorization})
        await not_http(run_of.client.base_url.port or 0, credential)
    for credential in credentials[:2]:  # of a shape that is known
        await run_of.call("GET", WHOAMI, good, {"X-Request-Id": credential})
        for _ in range(2):
            again = await run_of.call(
                "POST", PROJECTS, good, {"Idempotency-Key": credential}, json={"name": "one"}
            )
            assert again.status_code == (201 if len(credential) < 256 else 400)
        await run_of.call("POST", PROJECTS, good, json={"name": "x", credential: 1})


async def opaque_everywhere(run_of: Everything, good: str, secrets: list[str]) -> None:
    """Secrets where they are not expected: in other headers, queries, paths and bodies."""
    _, key = await run_of.key(good, "projects:read")
    for secret in [key, good, *secrets]:
        for name in (
            "X-Api-Key",
            "Cookie",
            "Proxy-Authorization",
            "X-Organization-Id",
            "Referer",
            "User-Agent",
            "X-Forwarded-For",
            "Provider-Signature",
            "Content-Type",
        ):
            await run_of.call("GET", WHOAMI, good, {name: secret})
        for name in ("status", "cursor", "limit", "orgId", "access_token"):
            await run_of.call("GET", KEYS, good, params={name: secret})
        for path in (
            f"{PROJECTS}/",
            f"{KEYS}/",
            "/",
            VERIFY,
            f"{TENANTS}/",
            "/api/v1/billing/events/",
            f"{WEBHOOK}/",
        ):
            await run_of.call("GET", path + quote(secret, safe=""), good)
        new_key = {"orgId": ORG, "name": "x", "scopes": ["projects:read"]}
        for body in (
            {"orgId": secret},
            {"scopes": [secret]},
            {"mode": secret},
            {"expiresAt": secret},
            {"accessLevel": secret},
            {"name": {"a": secret}},
            {"secret": secret},
        ):
            answer = await run_of.call("POST", KEYS, good, json={**new_key, **body})
            assert answer.status_code in (403, 422)
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
            for path in (KEYS, REPORT, WEBHOOK):
                given = {"Content-Type": kind, "Provider-Signature": secret}
                answer = await run_of.call("POST", path, good, given, content=secret)
                assert 400 <= answer.status_code < 500
        await run_of.call("POST", REPORT, json={"secret": secret[:-1] + "~"})


async def not_http(port: int, credential: str) -> None:
    """Send what is no request, with a credential in it."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(
        f"GET /{credential} HTTP/9.9\r\nAuthorization Bearer {credential}\r\n\x00\r\n\r\n".encode()
    )
    await writer.drain()
    await reader.read()
    writer.close()
    await writer.wait_closed()


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def key_lifetimes(run_of: Everything, owner: str) -> None:
    """Keys that are changed, rotated, revoked, and asked for twice."""
    for overlap in (0, 60):
        key_id, key = await run_of.key(owner, "projects:read")
        rotated = await run_of.call(
            "POST", f"{KEYS}/{key_id}/rotate", owner, json={"overlapSeconds": overlap}
        )
        assert rotated.status_code == 201
        for secret in (key, rotated.json()["secret"]):
            await run_of.call("GET", PROJECTS, secret)
            await run_of.call("POST", PROJECTS, secret, json={"name": "not allowed"})
    key_id, key = await run_of.key(owner, "projects:read")
    await run_of.call("PATCH", f"{KEYS}/{key_id}", owner, json={"name": "changed"})
    assert (await run_of.call("DELETE", f"{KEYS}/{key_id}", owner)).status_code == 204
    assert (await run_of.call("GET", PROJECTS, key)).status_code == 401
    for status in (201, 409):
        body = {"orgId": ORG, "name": "x", "scopes": ["projects:read"]}
        made = await run_of.call("POST", KEYS, owner, {"Idempotency-Key": "once"}, json=body)
        assert made.status_code == status
    await run_of.call("GET", KEYS, owner)


async def bad_tokens(run_of: Everything, owner: str) -> None:
    """Tokens that are refused, each for another reason."""
    now = int(time.time())
    head, body, signature = owner.split(".")
    bad = [
        run_of.token("expired token", iat=now - 7200, exp=now - 3600),
        run_of.token("token for another API", aud="another"),
        run_of.token("ID token", nonce="n"),
        run_of.token("token of another tenant", org_id="other"),
        run_of.secrets.add(
            "token with a wrong signature", f"{head}.{body}.{signature[:-8]}AAAAAAAA"
        ),
        run_of.secrets.add("token without a signature", f"{head}.{body}."),
        run_of.secrets.add(
            "token of an unknown key", run_of.issuer.mint(signing_key("ES256", "unknown"))
        ),
    ]
    for token in bad:
        for path in (WHOAMI, PROJECTS, f"{VERIFY}projects:read"):
            assert (await run_of.call("GET", path, token)).status_code in (401, 403)


async def webhooks_and_mails(run_of: Everything, mail: MailServer, worker: Running) -> None:
    """Events with good and bad signatures, and a mail server that repeats the password that it
    refuses.
    """
    now, password = int(time.time()), SETTINGS["mail password"]
    # in both ways
    mail.replies_to_auth.extend([f"535 5.7.8 {SMTP_USER} {password} {in_base64(password)}"] * 2)
    first = await run_of.deliver(events.failed(created=now), "webhook secret")
    await worker.until("the mail server refused the user or password", "err")
    second = await run_of.deliver(
        events.failed(created=now), "older webhook secret", header="Stripe-Signature"
    )
    await mail.wait_for(lambda server: len(server.received) >= 1)
    bad = await run_of.deliver(events.failed(created=now), "pepper")
    useless = await run_of.deliver(
        {"id": "evt_1", "type": "invoice.payment_failed", "data": 1}, "webhook secret"
    )
    assert [first.text, second.text, bad.text] == ["OK", "OK", "Invalid signature"]
    assert useless.status_code in (200, 400)


async def sessions(run_of: Everything, owner: str, provider: ProviderServer) -> None:
    """The provider's API, which repeats the key that it refuses."""
    # a tenant with a subscription cannot buy another one
    ended = events.deleted(created=int(time.time()))
    assert (await run_of.deliver(ended, "webhook secret")).text == "OK"
    echo = refusal(401, message=f"Invalid API Key provided: {PROVIDER_KEY}")
    for path, body in ((CHECKOUT, {"plan": "pro"}), (PORTAL, {})):
        provider.answers.append(echo)
        assert (await run_of.call("POST", path, owner, json=body)).status_code in (502, 503)
        await run_of.call("POST", path, owner, json=body)
    provider.answers.append(echo)
    completed = events.completed(org=ORG, customer="cus_acme", created=int(time.time()))
    asked = len(provider.requests)
    assert (await run_of.deliver(completed, "webhook secret")).text == "OK"
    await provider.until_requested(asked + 1)


async def leaks(run_of: Everything, owner: str, mail: MailServer) -> None:
    """A key that leaked, reported twice, and used once more."""
    _, key = await run_of.key(owner, "projects:read", name="leaked")
    received = len(mail.received)
    answers = [await run_of.call("POST", REPORT, json={"secret": key}) for _ in range(2)]
    assert {answer.status_code for answer in answers} == {200}
    assert (await run_of.call("GET", PROJECTS, key)).status_code == 401
    await mail.wait_for(lambda server: len(server.received) > received)


async def invitations(run_of: Everything, owner: str, mail: MailServer) -> None:
    """An invitation by mail, whose link is opened, refused and accepted; and one confirmation."""
    path = "/api/v1/invitations"
    address = "invited@acme.example"
    received = len(mail.received)
    body = {"email": address, "role": "member"}
    made = await run_of.call("POST", path, owner, json=body, headers={"Idempotency-Key": "invite"})
    assert made.status_code == 201, made.text
    await mail.wait_for(lambda server: len(server.received) > received)
    token = _parameter(mail.received.pop(), "token")
    run_of.secrets.add("token of an invitation", token)
    run_of.secrets.add("HMAC of an invitation", token.partition(".")[2])
    link = {"token": token}
    user = run_of.token("token of a user without an address", sub="invited", org_id="another")
    assert (await run_of.call("POST", f"{path}/accept", user, json=link)).status_code == 403
    confirmation = await run_of.call("POST", f"{path}/confirmation", user, json=link)
    assert confirmation.status_code == 204
    await mail.wait_for(lambda server: len(server.received) > received)
    link["proof"] = _parameter(mail.received.pop(), "proof")
    run_of.secrets.add("proof of an address", link["proof"])
    async with httpx2.AsyncClient(base_url=run_of.client.base_url, trust_env=False) as browser:
        page = await browser.get("/invitation", params=link)
    assert page.status_code == 200
    again = {"Idempotency-Key": token}
    accepted = await run_of.call("POST", f"{path}/accept", user, json=link, headers=again)
    assert accepted.status_code == 200, accepted.text


def _parameter(mail: Received, name: str) -> str:
    found = re.search(rf"[?&]{name}=([\w.-]+)", mail.part("plain"))
    assert found is not None
    return found[1]


async def broken_database(run_of: Everything, key: str, conninfo: str) -> None:
    """Internal errors, as after a failed migration: requests fail, and the log has the reason."""
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        for table in ("projects", "audit_events", "billing_events"):
            await connection.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
        answers = [
            await run_of.call("GET", PROJECTS, key),
            await run_of.call("POST", PROJECTS, key, json={"name": "x"}),
            await run_of.call("POST", REPORT, json={"secret": key}),
            await run_of.deliver(events.failed(created=int(time.time())), "webhook secret"),
        ]
        assert {answer.status_code for answer in answers} == {500}
        for table in ("projects", "audit_events", "billing_events"):
            await connection.execute(f"ALTER TABLE {table}_away RENAME TO {table}")


async def absent_database(
    run_of: Everything, key: str, link: DatabaseLink, worker: Running
) -> None:
    """The database goes away while everybody works, and comes back."""
    await link.cut()
    answers = await asyncio.gather(
        run_of.call("GET", PROJECTS, key),
        run_of.call("GET", KEYS, key),
        run_of.call("GET", "/readyz", key),
        run_of.call("POST", REPORT, json={"secret": key}),
        run_of.deliver(events.failed(created=int(time.time())), "webhook secret"),
    )
    assert {answer.status_code for answer in answers} == {503}
    await worker.until("interrupted", "err")
    await link.restore()
    assert (await run_of.call("GET", PROJECTS, key)).status_code == 200


async def absent_issuer(run_of: Everything) -> None:
    """A token of an unknown key while the identity provider is away."""
    await run_of.issuer.stop()
    token = run_of.issuer.mint(signing_key("EdDSA", "never seen"))
    answer = await run_of.call(
        "GET", WHOAMI, run_of.secrets.add("token of a key never seen", token)
    )
    assert answer.status_code in (401, 503)


def planted(write: Callable[[bytes], bytes]) -> list[str]:
    """The names of what is found where this was done to a secret, and then written into the log."""
    secrets = Secrets()
    secrets.add("another", "another-secret-0123456789")
    secret = secrets.add("planted", SETTINGS["session secret"])
    line = json.dumps({"level": "error", "message": "harmless"}).encode()
    secrets.keep("log", line + b"\n" + b"ab" + write(secret.encode()) + b"yz\n" + line)
    return sorted({trace.secret for trace in secrets.traces()})


@pytest.mark.parametrize("number", range(len(list(forms("x" * 30)))))
def test_searcher_finds_a_planted_secret_in_every_form(number: int) -> None:
    assert planted(lambda raw: list(forms(raw.decode()))[number][1]) == ["planted"]


@pytest.mark.parametrize(
    "write",
    [
        lambda raw: b"Bearer " + raw,
        lambda raw: base64.b64encode(b"user:" + raw),
        lambda raw: base64.b64encode(b"a" + raw + b"longer text"),
        lambda raw: raw.hex().upper().encode(),
    ],
)
def test_searcher_finds_a_planted_secret_within_other_text(write: Callable[[bytes], bytes]) -> None:
    assert planted(write) == ["planted"]


def test_searcher_finds_nothing_where_nothing_is() -> None:
    assert planted(lambda raw: raw[:-1]) == []


def test_searcher_finds_the_signature_of_a_token_alone() -> None:
    secrets = Secrets()
    secrets.add("token", "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ1c2VyIn0.c2lnbmF0dXJlb2ZhdG9rZW4")
    secrets.keep("log", "signature c2lnbmF0dXJlb2ZhdG9rZW4 is wrong")
    assert {trace.secret for trace in secrets.traces()} == {"signature of token"}

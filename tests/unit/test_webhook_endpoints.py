"""The endpoints of webhooks in the plan catalog, and the signatures of messages to them."""

import base64
from datetime import UTC, datetime

import pytest

from tenantry.common.secret import Secret
from tenantry.domain.plans import CatalogError, parse_catalog
from tenantry.domain.webhooks import WebhookEndpoint, signed_headers
from tests.support.cases import cases
from tests.support.documentation import block_of
from tests.support.webhook_endpoint import OTHER_SECRET, SECRET, endpoint_at

FREE = '[[plans]]\nid = "free"\n'
NOW = datetime(2021, 2, 25, 15, 2, 10, 999_999, tzinfo=UTC)
BODY = b'{"test": 2432232314}'
OF_THE_SPECIFICATION = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def entry(
    name: str = '"app"',
    url: str = '"https://app.example/hooks"',
    types: str = '["tenant.*"]',
    secrets: str = f'["{SECRET}"]',
    more: str = "",
) -> str:
    fields = f"name = {name}\nurl = {url}\ntypes = {types}\nsecrets = {secrets}\n{more}\n"
    return f"[[webhooks]]\n{fields}"


def endpoints(text: str) -> tuple[WebhookEndpoint, ...]:
    return parse_catalog(FREE + text).webhooks


def faults_of(text: str) -> list[str]:
    with pytest.raises(CatalogError) as error:
        parse_catalog(FREE + text)
    return error.value.faults


def secret_of(size: int) -> str:
    return "whsec_" + base64.b64encode(bytes(range(size))).decode()


# Endpoints


def test_catalog_needs_no_webhooks() -> None:
    assert endpoints("") == ()


def test_endpoint_has_what_the_catalog_says() -> None:
    types = '["tenant.access_changed", "member.*", "audit.*"]'
    [endpoint] = endpoints(entry(types=types, secrets=f'["{SECRET}", "{OTHER_SECRET}"]'))
    assert (endpoint.name, endpoint.url) == ("app", "https://app.example/hooks")
    assert endpoint.types.patterns == ("tenant.access_changed", "member.*", "audit.*")
    assert [secret.reveal() for secret in endpoint.secrets] == [SECRET, OTHER_SECRET]
    assert not endpoint.allow_private


def test_endpoints_of_the_guide() -> None:
    block = block_of("how-to/send-webhooks.md", "[[webhooks]]")
    catalog = FREE + block.replace("whsec_...", SECRET)
    app, crm = parse_catalog(catalog, {"crm.secrets": OTHER_SECRET}.__getitem__).webhooks
    assert (app.secrets, crm.secrets) == ((Secret(SECRET),), (Secret(OTHER_SECRET),))
    assert (app.allow_private, crm.allow_private) == (False, True)


@cases(
    "url",
    ["http://app.internal:8080/", "http://10.0.0.1/", "https://[::1]/", "https://169.254.169.254/"],
)
def test_private_address_must_be_allowed(url: str) -> None:
    [fault] = faults_of(entry(url=f'"{url}"'))
    assert fault.startswith("webhook 'app': url ")
    assert fault.endswith("allow_private = true")
    [endpoint] = endpoints(entry(url=f'"{url}"', more="allow_private = true"))
    assert endpoint.allow_private


@cases(
    "url",
    [
        "",
        "app.example",
        "//app.example/",
        "https:///hooks",
        "https://:443/",
        "https://app.example:0/",
        "https://app.example:65536/",
        "https://app.example:x/",
        "https://[::1/",
        "https://app.example/a b",
        "https://app.example/\\n",
        "https://app.example\\\\@evil.example/",
        "https://ápp.example/",
        "https://127。0。0。1/",
        "https://①②⑦.0.0.1/",
        "https://app.example/" + "x" * 2000,
        "ftp://app.example/",
        "file:///etc/passwd",
        "https://user@app.example/",
        "https://user:pass-word@app.example/",
        "https://app.example/#top",
        "https://app.example/#",
    ],
)
def test_url_of_a_faulty_form(url: str) -> None:
    [fault] = faults_of(entry(url=f'"{url}"', more="allow_private = true"))
    assert fault.startswith("webhook 'app': url must ")
    assert "pass-word" not in fault


@cases("name", ["", "a b", "-app", "äpp", "a" * 65, "app\\n", "a.b"])
def test_name_of_a_faulty_form(name: str) -> None:
    [fault] = faults_of(entry(name=f'"{name}"'))
    assert "name must be 1 to 64 letters, digits, '_' and '-'" in fault


@cases(
    ("types", "fault"),
    [
        ("[]", "types must name at least one type of event, such as 'tenant.*'"),
        ('["tenant.*", "tenat.created"]', "types: 'tenat.created' is not a type of event"),
        ('["*"]', "types: '*' is not a type of event"),
        ('"tenant.*"', "Expected `array`, got `str` - at `$.types`"),
    ],
)
def test_faulty_types(types: str, fault: str) -> None:
    assert faults_of(entry(types=types)) == [f"webhook 'app': {fault}"]


@cases("size", [24, 32, 64])
def test_secret_of_a_valid_length(size: int) -> None:
    assert len(endpoints(entry(secrets=f'["{secret_of(size)}"]'))) == 1


FORM = "must be whsec_ and base64 of 24 to 64 bytes"
KNOWN = "is a well-known example: make a new one (whsec_ and openssl rand -base64 32)"


@cases(
    ("secrets", "fault"),
    [
        ("[]", "give either secrets or secrets_file"),
        (
            f'["{SECRET}", "{OTHER_SECRET}", "{secret_of(24)}"]',
            "secrets: give one secret, or two while one replaces the other",
        ),
        (f'["{secret_of(23)}"]', f"secrets: number 1 {FORM}"),
        (f'["{secret_of(65)}"]', f"secrets: number 1 {FORM}"),
        (f'["{SECRET}", "{SECRET[6:]}"]', f"secrets: number 2 {FORM}"),
        (f'["{SECRET}!"]', f"secrets: number 1 {FORM}"),
        (f'["{SECRET[:-1]}"]', f"secrets: number 1 {FORM}"),
        (f'["{SECRET[:-1]}ä"]', f"secrets: number 1 {FORM}"),
        (f'["{SECRET}", "{SECRET}"]', "secrets: both are the same"),
        (f'["{OF_THE_SPECIFICATION}"]', f"secrets: number 1 {KNOWN}"),
        (f'["{secret_of(24)}", "whsec_{"A" * 32}"]', f"secrets: number 2 {KNOWN}"),
        (f'"{SECRET}"', "Expected `array`, got `str` - at `$.secrets`"),
        (f'[["{SECRET}"]]', "Expected `str`, got `array` - at `$.secrets[0]`"),
    ],
)
def test_faulty_secrets_are_not_shown(secrets: str, fault: str) -> None:
    assert faults_of(entry(secrets=secrets)) == [f"webhook 'app': {fault}"]


def in_file(path: str = "app.secrets") -> str:
    return entry(more=f'secrets_file = "{path}"').replace(f'secrets = ["{SECRET}"]\n', "")


@cases("text", [SECRET, f"{SECRET}\n{OTHER_SECRET}\n", f"  {SECRET}\r\n\n{OTHER_SECRET}"])
def test_secrets_may_be_in_a_file(text: str) -> None:
    [endpoint] = parse_catalog(FREE + in_file(), {"app.secrets": text}.__getitem__).webhooks
    assert [secret.reveal() for secret in endpoint.secrets] == text.split()


@cases(
    ("text", "fault"),
    [
        (SECRET + "!", f": number 1 {FORM}"),
        (f"{SECRET}\n{SECRET[6:]}", f": number 2 {FORM}"),
        (f"{SECRET}\n{SECRET}", ": both are the same"),
        (
            f"{SECRET}\n{OTHER_SECRET}\n{secret_of(24)}",
            ": give one secret, or two while one replaces the other",
        ),
    ],
)
def test_faulty_secrets_in_a_file_are_not_shown(text: str, fault: str) -> None:
    with pytest.raises(CatalogError) as error:
        parse_catalog(FREE + in_file(), lambda _: text)
    assert error.value.faults == [f"webhook 'app': secrets_file app.secrets{fault}"]


def test_secret_in_place_of_a_file_is_not_shown() -> None:
    assert faults_of(in_file(SECRET)) == [
        "webhook 'app': secrets_file must be the path of a file, and is a secret"
    ]


def test_secrets_are_given_in_one_way() -> None:
    fault = "webhook 'app': give either secrets or secrets_file"
    assert faults_of(entry(more='secrets_file = "app.secrets"')) == [fault]
    assert faults_of(in_file().replace('secrets_file = "app.secrets"', "")) == [fault]


def test_each_faulty_endpoint_is_named() -> None:
    nameless = entry().replace('name = "app"\n', "")
    unknown = entry(name='"other"', more='secret = "x"')
    assert faults_of(nameless + unknown) == [
        "webhook number 1: Object missing required field `name`",
        "webhook 'other': Object contains unknown field `secret`",
    ]


def test_names_are_unique() -> None:
    assert faults_of(entry() + entry()) == ["webhook 'app' occurs twice"]


def test_there_are_at_most_ten() -> None:
    many = [entry(name=f'"app{number}"') for number in range(11)]
    assert len(endpoints("".join(many[:10]))) == 10
    assert faults_of("".join(many)) == ["webhooks: 11 endpoints, and there may be 10"]


def test_one_table_is_not_a_list() -> None:
    assert faults_of("[webhooks]\n") == ["webhooks: must be a list of tables, [[webhooks]]"]


def test_secret_is_in_no_text_of_an_endpoint() -> None:
    [endpoint] = endpoints(entry(url='"https://app.example/?token=abc"'))
    text = f"{endpoint!r} {endpoint}"
    assert SECRET.removeprefix("whsec_") not in text
    assert "abc" not in text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://app.example/hooks", "https://app.example/hooks"),
        ("https://app.example/?token=abc", "https://app.example/?..."),
    ],
)
def test_query_of_a_url_is_not_shown(url: str, shown: str) -> None:
    assert endpoint_at(url).shown_url == shown


# Signatures


def test_message_is_signed_with_the_decoded_secret() -> None:
    """The example of the specification's libraries."""
    endpoint = endpoint_at("https://app.example/", secrets=(OF_THE_SPECIFICATION,))
    headers = signed_headers(endpoint, "msg_p5jXN8AQM9LWM0D4loKWxJek", NOW, BODY)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_each_of_two_secrets_signs() -> None:
    def signature(*secrets: str) -> str:
        endpoint = endpoint_at("https://app.example/", secrets=secrets)
        return signed_headers(endpoint, "evt_1", NOW, BODY)["webhook-signature"]

    assert signature(SECRET) != signature(OTHER_SECRET)
    both = signature(SECRET, OTHER_SECRET)
    assert both == f"{signature(SECRET)} {signature(OTHER_SECRET)}"

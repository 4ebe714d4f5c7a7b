"""The examples for gateways: the same headers and scopes in all four, also in those that no test
can run.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest

from tenantry.domain.errors import NotFoundError
from tenantry.domain.gateway_paths import requirement_of_check
from tests.support.cases import cases
from tests.support.gateways import EXAMPLES, IDENTITY

VERIFY: Final = "/api/v1/auth/verify/"
NAMES: Final = {name.lower() for name in IDENTITY}
SCOPES: Final = {"projects:read", "projects:write", "reports:read", "-"}
NGINX: Final = (EXAMPLES / "nginx.conf").read_text("utf-8")
CADDY: Final = (EXAMPLES / "Caddyfile").read_text("utf-8")
TRAEFIK: Final[dict[str, Any]] = msgspec.yaml.decode((EXAMPLES / "traefik.yml").read_bytes())[
    "http"
]
ENVOY: Final[dict[str, Any]] = msgspec.yaml.decode((EXAMPLES / "envoy.yaml").read_bytes())[
    "static_resources"
]
FORWARD_AUTH: Final = {
    name: item["forwardAuth"]
    for name, item in TRAEFIK["middlewares"].items()
    if "forwardAuth" in item
}
MANAGER: Final = ENVOY["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
EXT_AUTHZ: Final = {
    item["name"]: item["typed_config"]
    for item in MANAGER["http_filters"]
    if item["name"].startswith("tenantry.")
}


def spellings(name: str) -> Iterator[str]:
    """A header's name with each hyphen as it is, or as an underscore."""
    parts = name.split("-")
    for joints in itertools.product("-_", repeat=len(parts) - 1):
        yield "".join(
            itertools.chain.from_iterable(itertools.zip_longest(parts, joints, fillvalue=""))
        )


def test_nginx_and_caddy_pass_on_the_identity() -> None:
    asked = dict(re.findall(r"auth_request_set \$(tenantry_\w+) +\$upstream_http_(\w+);", NGINX))
    given = dict(re.findall(r"proxy_set_header (\S+) +\$(tenantry_\w+);", NGINX))
    assert {
        name.lower(): asked[variable].replace("_", "-") for name, variable in given.items()
    } == {name: name for name in NAMES}
    [copied] = re.findall(r"copy_headers (.+)", CADDY)
    assert set(copied.lower().split()) == NAMES


@cases("config", FORWARD_AUTH.values(), ids=FORWARD_AUTH)
def test_traefik_forwards_the_identity_and_trusts_no_client_header(config: dict[str, Any]) -> None:
    assert {name.lower() for name in config["authResponseHeaders"]} == NAMES
    assert config["authRequestHeaders"] == ["Authorization", "X-Organization-Id"]
    assert config["trustForwardHeader"] is False


@cases("config", EXT_AUTHZ.values(), ids=EXT_AUTHZ)
def test_envoy_forwards_the_identity_and_fails_closed(config: dict[str, Any]) -> None:
    answer = config["http_service"]["authorization_response"]
    assert {pattern["exact"] for pattern in answer["allowed_upstream_headers"]["patterns"]} == NAMES
    assert config["failure_mode_allow"] is False
    assert config["status_on_error"] == {"code": "ServiceUnavailable"}
    assert config["http_service"]["server_uri"]["cluster"] in {
        cluster["name"] for cluster in ENVOY["clusters"]
    }


def test_every_example_removes_the_clients_identity_headers() -> None:
    assert set(re.findall(r"proxy_set_header (\S+)", NGINX.lower())) >= NAMES
    assert set(re.findall(r"request_header -(\S+)", CADDY.lower())) >= {*NAMES, "*_*"}
    taken = {
        name.lower() for name in TRAEFIK["middlewares"]["clean"]["headers"]["customRequestHeaders"]
    }
    assert taken >= {spelling for name in NAMES for spelling in spellings(name)}
    [mutation] = MANAGER["early_header_mutation_extensions"]
    assert {entry["remove"] for entry in mutation["typed_config"]["mutations"]} >= NAMES
    assert MANAGER["common_http_protocol_options"] == {
        "headers_with_underscores_action": "DROP_HEADER"
    }


def test_no_other_protocol_passes_traefik() -> None:
    cleaned = TRAEFIK["middlewares"]["clean"]["headers"]["customRequestHeaders"]
    assert (cleaned["Connection"], cleaned["Upgrade"]) == ("", "")


def test_no_other_protocol_passes_envoy() -> None:
    assert "upgrade_configs" not in str(ENVOY)


CHECKS: Final = {
    "nginx": {
        *re.findall(r" (projects:\S+);", NGINX),
        *re.findall(r"set \$tenantry_scope ([^$;]+);", NGINX),
    },
    "caddy": {
        *re.findall(r" (projects:\S+)\n", CADDY),
        *re.findall(r"vars tenantry_scope ([^{\n]+)\n", CADDY),
    },
    "traefik": {config["address"].partition(VERIFY)[2] for config in FORWARD_AUTH.values()},
    "envoy": {
        config["http_service"]["path_prefix"].partition(VERIFY)[2] for config in EXT_AUTHZ.values()
    },
}
"""What each example writes after `VERIFY`."""


def test_every_example_asks_for_the_same_scopes_and_ends_in_a_mode() -> None:
    expected = {f"{scope}/mode/live" for scope in SCOPES}
    assert expected == CHECKS["nginx"] == CHECKS["caddy"] == CHECKS["traefik"] == CHECKS["envoy"]


@cases("check", [*sorted(CHECKS["envoy"]), "reports:read/feature:sso/mode/live"])
def test_clients_path_that_envoy_appends_adds_nothing(check: str) -> None:
    """Envoy asks for its ``path_prefix`` with the client's path behind it."""
    scope, _, written = check.partition("/")
    for added in (
        "/mode/any",
        "/mode/test",
        "/feature:x",
        "//mode/any",
        "/%6Dode/any",
        "/MODE/any",
    ):
        with pytest.raises(NotFoundError):
            requirement_of_check(scope, written + added)
    for added in ("/", "/projects/7", "/x/mode/any", "/x/feature:x", "/x/mode/test", "?mode=any"):
        path = (written + added).partition("?")[0]
        assert requirement_of_check(scope, path) == requirement_of_check(scope, written), added


def test_traefik_asks_about_every_path_but_the_public_one() -> None:
    for name, router in TRAEFIK["routers"].items():
        first, *asking, last = router["middlewares"]
        assert (first, last) == ("clean", "hide")
        assert len(asking) == (0 if name == "status" else 1)
        assert set(asking) <= FORWARD_AUTH.keys()


def test_envoy_asks_for_one_scope_on_every_path_but_the_public_one() -> None:
    [host] = MANAGER["route_config"]["virtual_hosts"]
    asked = [EXT_AUTHZ.keys() - route["typed_per_filter_config"].keys() for route in host["routes"]]
    assert asked == [
        {"tenantry.projects-read"},
        {"tenantry.projects-write"},
        {"tenantry.reports-read"},
        {"tenantry.any"},
        set(),
    ]
    assert all(
        config["disabled"] is True
        for route in host["routes"]
        for config in route["typed_per_filter_config"].values()
    )


@pytest.mark.parametrize("name", ["traefik.yml", "envoy.yaml"])
def test_yaml_is_plain(name: str) -> None:
    """Merge keys are not YAML 1.2: Envoy takes them for a field."""
    assert "<<:" not in (EXAMPLES / name).read_text("utf-8")

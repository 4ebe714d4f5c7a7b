"""The files of examples/patroni: no secrets, and the settings without which a failover is unsafe.

`tests/system/test_patroni.py` runs them.
"""

import re
from typing import Any, Final

import msgspec

from tests.support.installed import ROOT

FOLDER: Final = ROOT / "examples" / "patroni"


def patroni() -> dict[str, Any]:
    """What `patroni.yml` says."""
    configuration: dict[str, Any] = msgspec.yaml.decode((FOLDER / "patroni.yml").read_bytes())
    return configuration


def compose() -> dict[str, Any]:
    """What `compose.yaml` says."""
    configuration: dict[str, Any] = msgspec.yaml.decode((FOLDER / "compose.yaml").read_bytes())
    return configuration


def test_no_file_has_a_secret() -> None:
    for path in FOLDER.iterdir():
        if path.is_file():
            settings = re.sub("#.*", "", path.read_text())
            assert not re.search(r"(?i)password['\"]?[:=]\s*['\"]?\w", settings), path
    assert "examples/patroni/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_a_lease_outlasts_two_attempts_to_renew_it() -> None:
    settings = patroni()["bootstrap"]["dcs"]
    assert settings["ttl"] >= settings["loop_wait"] + 2 * settings["retry_timeout"]


def test_an_acknowledged_change_is_on_the_server_that_takes_over() -> None:
    settings = patroni()["bootstrap"]["dcs"]
    assert settings["synchronous_mode"] is True
    assert settings["synchronous_node_count"] == 1


def test_the_watchdog_resets_a_machine_before_another_takes_over() -> None:
    configuration = patroni()
    assert configuration["watchdog"]["mode"] == "required"
    assert 0 < configuration["watchdog"]["safety_margin"] < configuration["bootstrap"]["dcs"]["ttl"]


def test_haproxy_closes_connections_to_a_replaced_primary() -> None:
    text = (FOLDER / "haproxy.cfg").read_text()
    assert "option httpchk OPTIONS /primary\n" in text
    [servers] = re.findall(r"default-server (.*)", text)
    assert "on-marked-down shutdown-sessions" in servers
    assert "check-ssl verify required" in servers
    assert len(re.findall(r"^ +server .* verifyhost ", text, re.MULTILINE)) == 3


def test_nothing_is_accepted_over_the_network_without_tls_and_a_password() -> None:
    configuration = patroni()
    rules = [rule.split() for rule in configuration["postgresql"]["pg_hba"]]
    assert {rule[0] for rule in rules} == {"local", "hostssl"}
    assert {rule[-1] for rule in rules} == {"scram-sha-256"}
    assert configuration["etcd3"]["protocol"] == "https"
    assert configuration["restapi"]["verify_client"] in ("optional", "required")


def test_the_last_file_in_a_container_turns_the_watchdog_off() -> None:
    mounted = [volume.split(":")[1] for volume in compose()["services"]["db-1"]["volumes"]]
    files = sorted(path for path in mounted if path.endswith(".yml"))
    assert files == ["/etc/patroni/patroni.yml", "/etc/patroni/without-watchdog.yml"]
    assert msgspec.yaml.decode((FOLDER / "without-watchdog.yml").read_bytes()) == {
        "watchdog": {"mode": "off"}
    }


def test_each_container_has_its_own_certificate_name_and_data() -> None:
    services = compose()["services"]
    for name, service in services.items():
        volumes = [volume.split(":")[0] for volume in service["volumes"]]
        keys = [volume for volume in volumes if volume.endswith(".key")]
        assert keys == ([] if name == "proxy" else [f"./secrets/{name}.example.key"])
        if name != "proxy":
            assert volumes[0] == name
            assert service["networks"]["database"]["aliases"] == [f"{name}.example"]
    assert {
        name: services[name]["environment"]["PATRONI_NAME"]
        for name in services
        if name.startswith("db-")
    } == {name: name for name in ("db-1", "db-2", "db-3")}

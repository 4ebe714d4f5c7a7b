"""The manifests of the chart: rendered as the page says, and held to the API's schemas and to the
service.

No cluster is there to run them. What they say of tenantry is compared with tenantry.
"""

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from tenantry import __version__
from tenantry.server.shutdown import REQUEST_SECONDS
from tenantry.settings import OTHER_CONNECTIONS, VARIABLES, Settings, load
from tests.support.container import CONTAINERFILE
from tests.support.installed import ROOT
from tests.support.kubernetes import (
    CHART,
    EXAMPLE,
    Manifest,
    Renderer,
    manifests_in,
    named,
    pods,
    unpacked_renderer,
)

PAGE: Final = ROOT / "docs" / "how-to" / "kubernetes.md"
DIGEST: Final = f"sha256:{'0' * 64}"
OLDEST: Final = "1.31"
NEWEST: Final = "1.37"
MAX_CONNECTIONS: Final = 97
"""Those of PostgreSQL by default, but for three that it reserves for superusers."""


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    with unpacked_renderer() as renderer:
        yield renderer


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, with secrets made as docs/how-to/kubernetes.md says."""
    folder = tmp_path_factory.mktemp("installation")
    shutil.copytree(EXAMPLE, folder / "examples" / "kubernetes")
    script = script_of_the_page("cp -r examples/kubernetes")
    subprocess.run(["sh", "-ec", script], cwd=folder, check=True, capture_output=True)
    return folder / "production"


@pytest.fixture(scope="module")
def manifests(renderer: Renderer, installation: Path) -> list[Manifest]:
    """The plain manifests that docs/how-to/kubernetes.md renders."""
    clone = installation.parent
    (clone / "charts").symlink_to(CHART.parent)
    subprocess.run(
        ["sh", "-ec", script_of_the_page("helm template")],
        cwd=clone,
        env={**os.environ, "PATH": f"{renderer.program.parent}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
    )
    return manifests_in((installation / "tenantry.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def options(installation: Path) -> tuple[str, ...]:
    """The options for the values and the plans of the installation."""
    plans = f"plans={installation / 'plans.toml'}"
    return ("--values", str(installation / "values.yaml"), "--set-file", plans)


def script_of_the_page(beginning: str) -> str:
    """The script of docs/how-to/kubernetes.md that begins so."""
    page = PAGE.read_text("utf-8")
    [script] = re.findall(rf"```sh\n({re.escape(beginning)}.*?)```", page, re.DOTALL)
    return str(script)


def test_helm_upgrade_and_helm_template_have_the_same_options() -> None:
    upgrade = script_of_the_page("helm upgrade").split()
    template = script_of_the_page("helm template").split(">")[0].split()
    own = {"upgrade", "--install", "--wait", "--timeout", "15m"}
    assert [word for word in upgrade if word not in own] == [
        word for word in template if word != "template"
    ]


def test_plain_manifests_hold_no_secret(manifests: list[Manifest], installation: Path) -> None:
    rendered = (installation / "tenantry.yaml").read_text("utf-8")
    assert not {kind for kind, _ in named(manifests)} & {"Secret"}
    for secret in (installation / "secrets").iterdir():
        assert secret.read_text("utf-8").strip() not in rendered


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_one_of_the_api(manifests: list[Manifest], version: str) -> None:
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_misspelled_field_is_none_of_the_api(manifests: list[Manifest]) -> None:
    wrong = copy.deepcopy(named(manifests)["Deployment", "tenantry"])
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_the_chart_is_well_formed_with_each_of_its_options(renderer: Renderer) -> None:
    renderer.lint()
    options = (
        "image.tag=1.2.3",
        "plans=[[plans]]",
        "networkPolicy.databaseNetworks={192.0.2.10/32}",
        "drainSeconds=60",
        "ingress.className=nginx",
        "ingress.annotations.a=b",
        "imagePullSecrets[0].name=registry",
        f"image.digest={DIGEST}",
        "pod.nodeSelector.pool=accounts",
        "networkPolicy.extraEgress[0].ports[0].port=4318",
    )
    changed = renderer.helm(*(word for option in options for word in ("--set", option)))
    for manifest in changed:
        kubernetes_validate.validate(manifest, NEWEST, strict=True)
    service = pods(changed)["tenantry"]
    assert service["containers"][0]["image"] == f"registry.example.com/tenantry:1.2.3@{DIGEST}"
    assert service["terminationGracePeriodSeconds"] == 90
    assert service["nodeSelector"] == {"pool": "accounts"}
    policy = named(changed)["NetworkPolicy", "tenantry-database"]["spec"]
    assert {"ports": [{"port": 4318}]} in policy["egress"]
    assert ("ConfigMap", "tenantry-plans") in named(changed)
    least = named(
        renderer.helm("--set", "ingress.enabled=false,ingress.host=,networkPolicy.enabled=false")
    )
    assert not {"Ingress", "NetworkPolicy"} & {kind for kind, _ in least}


def test_the_chart_rejects_a_value_that_it_does_not_know(renderer: Renderer) -> None:
    with pytest.raises(subprocess.CalledProcessError) as rejected:
        renderer.helm("--set", "secretsName=mine")
    assert "additional properties 'secretsName' not allowed" in rejected.value.stderr


def test_the_chart_rejects_an_ingress_without_a_host(renderer: Renderer) -> None:
    with pytest.raises(subprocess.CalledProcessError) as rejected:
        renderer.helm("--set", "ingress.host=")
    assert "'/ingress/host'" in rejected.value.stderr


def test_the_chart_rejects_a_field_of_pods_that_it_sets_itself(renderer: Renderer) -> None:
    rendered = pods(renderer.helm("--set", "imagePullSecrets[0].name=registry"))
    own = {field for pod in rendered.values() for field in pod}
    with pytest.raises(subprocess.CalledProcessError) as rejected:
        renderer.helm(
            "--set-json", f"pod={json.dumps({field: {} for field in (*own, 'nodeSelector')})}"
        )
    assert set(re.findall(r"invalid propertyName '(\w+)'", rejected.value.stderr)) == own


def test_the_chart_writes_numbers_as_tenantry_reads_them(
    renderer: Renderer, tmp_path: Path
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("settings: {RAW_BODY_DAYS: 1000000, LOG_REQUESTS: true}\n")
    settings = settings_of(renderer.helm("--values", str(values)))
    assert (settings["RAW_BODY_DAYS"], settings["LOG_REQUESTS"]) == ("1000000", "true")


def test_the_chart_warns_of_a_gateway_whose_headers_do_not_count(renderer: Renderer) -> None:
    warning = "settings.TRUSTED_PROXIES is not set"
    assert warning in renderer.notes()
    notes = renderer.notes(
        "--set", "settings.TRUSTED_PROXIES=10.0.0.0/8", "--namespace", "accounts"
    )
    assert warning not in notes
    assert "kubectl exec deployment/tenantry --namespace accounts -- tenantry doctor" in notes


def test_no_service_and_no_worker_runs_before_the_command_after_a_restore(
    renderer: Renderer, options: tuple[str, ...], manifests: list[Manifest]
) -> None:
    restoring = renderer.helm(*options, "--set", "restoring=true")
    for manifest in restoring:
        kubernetes_validate.validate(manifest, NEWEST, strict=True)
    found = pods(restoring)
    [program, *_] = found["tenantry-worker"]["containers"][0].pop("command")
    assert program == "python"
    normal = dict(pods(manifests))
    del normal["tenantry"]
    assert found == normal
    notes = renderer.notes("--set", "restoring=true")
    assert "tenantry admin after-restore" in notes
    assert "rollout status" not in notes


def test_every_image_is_of_this_version(manifests: list[Manifest]) -> None:
    images = {
        container["image"] for pod in pods(manifests).values() for container in pod["containers"]
    }
    assert images == {f"registry.example.com/tenantry:{__version__}"}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def settings_of(manifests: list[Manifest]) -> dict[str, str]:
    [settings] = [
        dict(manifest["data"])
        for manifest in manifests
        if manifest["kind"] == "ConfigMap"
        and manifest["metadata"]["name"].startswith("tenantry-settings")
    ]
    return settings


def test_the_service_starts_with_the_settings(
    manifests: list[Manifest], installation: Path
) -> None:
    files = {"/run/secrets/tenantry": installation / "secrets", "/etc/tenantry": installation}
    settings = settings_of(manifests)
    for name, value in settings.items():
        folder, _, file = value.rpartition("/")
        settings[name] = str(files[folder] / file) if folder in files else value
    loaded = load(settings)
    assert loaded.base_url == "https://accounts.example.com"
    assert loaded.smtp is not None


def test_the_database_is_verified_by_authorities_of_the_image(installation: Path) -> None:
    [authorities] = re.findall(r"SSL_CERT_FILE=(\S+)", CONTAINERFILE.read_text("utf-8"))
    for secret in ("database_url", "database_owner_url"):
        address = conninfo_to_dict((installation / "secrets" / secret).read_text().strip())
        assert (address["sslmode"], address["sslrootcert"]) == ("verify-full", authorities)


def test_the_scrape_configuration_selects_the_pods_of_the_service(
    manifests: list[Manifest],
) -> None:
    [text] = re.findall(r"```yaml\n(scrape_configs:.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    [job] = yaml.safe_load(text)["scrape_configs"]
    [kept] = [rule for rule in job["relabel_configs"] if rule.get("action") == "keep"]
    labels = named(manifests)["Deployment", "tenantry"]["spec"]["template"]["metadata"]["labels"]
    found = {
        f"__meta_kubernetes_pod_label_{re.sub(r'[./]', '_', name)}": value
        for name, value in labels.items()
    }
    assert [found[name] for name in kept["source_labels"]] == [kept["regex"]]


def test_every_setting_is_one_of_tenantry(manifests: list[Manifest]) -> None:
    known = VARIABLES
    named_here = {
        variable["name"]
        for pod in pods(manifests).values()
        for variable in pod["containers"][0].get("env", [])
    }
    assert {*settings_of(manifests), *named_here} <= known


def test_every_secret_that_a_pod_reads_is_in_the_secret_that_it_mounts(
    manifests: list[Manifest], installation: Path
) -> None:
    commands = script_of_the_page("kubectl create namespace").replace("\\\n", " ")
    created = re.findall(r"^kubectl create secret generic (\S+)(.*)$", commands, re.MULTILINE)
    secrets = {name: set(re.findall(r"--from-file=(\S+)", rest)) for name, rest in created}
    assert set.union(*secrets.values()) == {
        file.name for file in (installation / "secrets").iterdir()
    }
    settings = settings_of(manifests)
    for name, pod in pods(manifests).items():
        [container] = pod["containers"]
        read = {variable["value"] for variable in container.get("env", [])}
        read |= {
            value
            for value in settings.values()
            if container.get("envFrom") and value.startswith("/run/")
        }
        [mount] = [
            mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "secrets"
        ]
        [held] = [
            volume["secret"]["secretName"]
            for volume in pod["volumes"]
            if volume["name"] == "secrets"
        ]
        assert read == {f"{mount}/{key}" for key in secrets[held]}, name
        assert ("database_owner_url" in secrets[held]) is (name == "tenantry-migrate")


def test_probes_ask_the_service_what_they_are_for(manifests: list[Manifest]) -> None:
    [container] = pods(manifests)["tenantry"]["containers"]
    [port] = container["ports"]
    asked = {
        probe: container[probe]["httpGet"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert {probe: request["path"] for probe, request in asked.items()} == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    assert {request["port"] for request in asked.values()} == {port["name"]}
    assert port["containerPort"] == Settings({}).port
    for name in ("tenantry-worker", "tenantry-migrate"):
        assert not [key for key in pods(manifests)[name]["containers"][0] if key.endswith("Probe")]


def test_a_pod_has_time_to_drain_and_to_end_its_requests(manifests: list[Manifest]) -> None:
    drain = int(settings_of(manifests)["DRAIN_SECONDS"])
    service = pods(manifests)["tenantry"]
    assert service["terminationGracePeriodSeconds"] >= drain + REQUEST_SECONDS + 10
    assert "lifecycle" not in service["containers"][0]


def test_pods_are_restricted(manifests: list[Manifest]) -> None:
    [account] = set(re.findall(r"^USER (\d+):\1$", CONTAINERFILE.read_text("utf-8"), re.MULTILINE))
    for pod in pods(manifests).values():
        context: dict[str, Any] = pod["securityContext"]
        assert (context["runAsNonRoot"], context["seccompProfile"]) == (
            True,
            {"type": "RuntimeDefault"},
        )
        assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {int(account)}
        assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert [
            mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
        ] == ["/tmp"]
        assert {"requests", "limits"} == set(container["resources"])


def test_the_most_pods_have_connections(manifests: list[Manifest]) -> None:
    found = named(manifests)
    scaler = found["HorizontalPodAutoscaler", "tenantry"]["spec"]
    settings = Settings(settings_of(manifests))
    update = found["Deployment", "tenantry"]["spec"]["strategy"]["rollingUpdate"]
    # one more during an update
    workers = found["Deployment", "tenantry-worker"]["spec"]["replicas"] + 1
    processes = (scaler["maxReplicas"] + update["maxSurge"]) * settings.workers + workers
    assert update["maxUnavailable"] == 0
    assert (
        processes * (settings.database_pool_size + OTHER_CONNECTIONS) + workers <= MAX_CONNECTIONS
    )


def test_every_selector_selects_the_pods_that_it_is_for(manifests: list[Manifest]) -> None:
    found = named(manifests)
    labels = {
        name: manifest["spec"]["template"]["metadata"]["labels"]
        for (kind, name), manifest in found.items()
        if kind in ("Deployment", "Job")
    }

    def selected(selector: dict[str, str]) -> set[str]:
        return {name for name, own in labels.items() if selector.items() <= own.items()}

    spec = {key: manifest["spec"] for key, manifest in found.items() if "spec" in manifest}
    policies = {
        name: spec["NetworkPolicy", name] for kind, name in found if kind == "NetworkPolicy"
    }
    chosen = {
        name: selected(policy["podSelector"]["matchLabels"]) for name, policy in policies.items()
    }
    assert chosen == {
        "tenantry-database": set(labels),
        "tenantry-service": {"tenantry"},
        "tenantry-worker": {"tenantry-worker"},
    }
    assert selected(spec["Service", "tenantry"]["selector"]) == {"tenantry"}
    assert selected(spec["PodDisruptionBudget", "tenantry"]["selector"]["matchLabels"]) == {
        "tenantry"
    }
    for constraint in spec["Deployment", "tenantry"]["template"]["spec"][
        "topologySpreadConstraints"
    ]:
        assert selected(constraint["labelSelector"]["matchLabels"]) == {"tenantry"}
    assert spec["HorizontalPodAutoscaler", "tenantry"]["scaleTargetRef"]["name"] == "tenantry"


def test_only_the_gateway_and_prometheus_reach_a_pod(manifests: list[Manifest]) -> None:
    found = named(manifests)
    policies = [
        manifest["spec"] for (kind, _), manifest in found.items() if kind == "NetworkPolicy"
    ]
    [ingress] = [policy["ingress"] for policy in policies if policy.get("ingress")]
    [rule] = ingress
    senders = [sender["namespaceSelector"]["matchLabels"] for sender in rule["from"]]
    assert senders == [{"tenantry/gateway": "true"}, {"tenantry/prometheus": "true"}]
    assert "Ingress" in found["NetworkPolicy", "tenantry-database"]["spec"]["policyTypes"]


def test_every_pod_may_ask_the_cluster_for_names(manifests: list[Manifest]) -> None:
    names = named(manifests)["NetworkPolicy", "tenantry-database"]["spec"]["egress"][0]
    [to] = names["to"]
    assert to["podSelector"]["matchLabels"] == {"k8s-app": "kube-dns"}
    assert {port["port"] for port in names["ports"]} == {53}


def test_secrets_are_files_that_git_leaves_alone() -> None:
    place = "production/secrets/api_key_pepper"
    ignored = subprocess.run(["git", "check-ignore", "--quiet", place], cwd=ROOT, check=False)
    assert ignored.returncode == 0

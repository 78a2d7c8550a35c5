"""The manifests: rendered by kubectl, valid against Kubernetes's own schemas, and hardened."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from sidecar.core.shards import Shard
from sidecar.readings import shard_of
from sidecar.settings import Settings

ROOT: Final = Path(__file__).resolve().parents[2]
OVERLAYS: Final = (
    "k8s/base",
    "k8s/overlays/kind",
    "k8s/overlays/prod",
    "tests/ops/native_sidecar",
    "tests/ops/shards",
    "tests/ops/gossip",
)
OURS: Final = ("operator.victoriametrics.com", "monitoring.googleapis.com")
"""Groups whose schemas Kubernetes does not ship."""


@cache
def rendered(folder: str) -> list[dict[str, Any]]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def one(folder: str, kind: str, name: str | None = None) -> dict[str, Any]:
    """The document of a kind; of several the one that is called so."""
    (found,) = [
        document
        for document in rendered(folder)
        if document["kind"] == kind
        and document["metadata"]["namespace"] != "vmstack"
        and name in (None, document["metadata"]["name"])
    ]
    return found


def our_container(folder: str) -> dict[str, Any]:
    pod = one(folder, "StatefulSet")["spec"]["template"]["spec"]
    containers = [*pod["containers"], *pod.get("initContainers", [])]
    (ours,) = [each for each in containers if each["name"] == "noetl-chain"]
    return dict(ours)


@pytest.mark.parametrize("folder", OVERLAYS)
def test_what_is_rendered_is_valid(folder: str) -> None:
    for document in rendered(folder):
        if document["apiVersion"].split("/")[0] not in OURS:
            kubernetes_validate.validate(document, "1.29", strict=True)


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_container_runs_as_nobody_and_can_write_its_volume_only(folder: str) -> None:
    ours = our_container(folder)
    pod = one(folder, "StatefulSet")["spec"]["template"]["spec"]
    security = {**pod.get("securityContext", {}), **ours["securityContext"]}
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert ours["securityContext"]["readOnlyRootFilesystem"] is True
    assert ours["securityContext"]["allowPrivilegeEscalation"] is False
    assert ours["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in ours["volumeMounts"]}
    secrets = {"/etc/noetl-chain/postgres": True}
    if folder == "tests/ops/gossip":
        secrets["/etc/noetl-chain/gossip"] = True
    assert mounts == {"/data": False, "/tmp": False, **secrets}
    assert ours["resources"]["limits"]["memory"]


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_settings_of_the_map_are_known_ones(folder: str) -> None:
    values = one(folder, "ConfigMap")["data"]
    assert values["NOETL_CHAIN_STORE_FAILURE"] == "stay"
    assert int(values["NOETL_CHAIN_STORE_MAX_BYTES"]) > 0
    assert "POSTGRES_PASSWORD" not in values
    known = (ROOT / "docs" / "configuration.md").read_text()
    for name in values:
        assert re.search(rf"`{name}`", known), name
    assert Settings.given(
        shard_index=0,  # the pod's own, by its name
        **{
            name.removeprefix("NOETL_CHAIN_").lower(): value
            for name, value in values.items()
            if name.startswith("NOETL_CHAIN_")
        },
    )


def test_one_pod_feeds_one_store() -> None:
    stateful = one("k8s/base", "StatefulSet")
    assert stateful["spec"]["replicas"] == 1
    assert stateful["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "10Gi"
    assert one("k8s/base", "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    selector = one("k8s/base", "Service")["spec"]["selector"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    assert one("k8s/base", "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_every_shard_has_one_pod_and_a_volume_of_its_own() -> None:
    """The ordinal is the shard: as many pods as the count says, and no index that all would share."""
    folder = "tests/ops/shards"
    stateful, values = one(folder, "StatefulSet"), one(folder, "ConfigMap")["data"]
    count = stateful["spec"]["replicas"]
    assert count > 1
    assert values["NOETL_CHAIN_SHARD_COUNT"] == str(count)
    assert "NOETL_CHAIN_SHARD_INDEX" not in values
    assert values.items() >= one("k8s/overlays/prod", "ConfigMap")["data"].items()
    assert stateful["spec"]["podManagementPolicy"] == "Parallel"
    assert [each["metadata"]["name"] for each in stateful["spec"]["volumeClaimTemplates"]] == ["data"]
    name = stateful["metadata"]["name"]
    found = [shard_of(None, count, f"{name}-{ordinal}") for ordinal in range(count)]
    assert found == [Shard(index, count) for index in range(count)]
    (spread,) = stateful["spec"]["template"]["spec"]["topologySpreadConstraints"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert spread["labelSelector"]["matchLabels"].items() <= labels.items()


GOSSIP: Final = "tests/ops/gossip"


def test_gossip_is_spoken_on_one_port_with_whoever_the_headless_service_names() -> None:
    """One name stands for all pods, so the count of shards may change; one that is not ready counts."""
    values, service = one(GOSSIP, "ConfigMap")["data"], one(GOSSIP, "Service")
    given = Settings.given(
        gossip_bind=values["NOETL_CHAIN_GOSSIP_BIND"], gossip_peers=values["NOETL_CHAIN_GOSSIP_PEERS"]
    )
    assert given.gossip_bind is not None
    host, port = str(given.gossip_bind).split(":")
    assert host == "0.0.0.0"
    named = service["metadata"]
    assert given.gossip_peers == (f"{named['name']}.{named['namespace']}.svc.cluster.local:{port}",)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    opened = {(each["containerPort"], each["protocol"]) for each in our_container(GOSSIP)["ports"]}
    assert opened == {(9109, "TCP"), (int(port), "TCP"), (int(port), "UDP")}
    names = [each["name"] for each in our_container(GOSSIP)["ports"]]
    assert len(set(names)) == len(names)
    assert values.items() >= one("tests/ops/shards", "ConfigMap")["data"].items()


def test_the_key_of_gossip_is_mounted_from_a_secret() -> None:
    values, ours = one(GOSSIP, "ConfigMap")["data"], our_container(GOSSIP)
    assert not any("KEY" in name and not name.endswith("_FILE") for name in values)
    file = Path(values["NOETL_CHAIN_GOSSIP_KEY_FILE"])
    (mount,) = [each for each in ours["volumeMounts"] if each["mountPath"] == str(file.parent)]
    pod = one(GOSSIP, "StatefulSet")["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    assert volume["secret"] == {"secretName": "noetl-chain-gossip", "defaultMode": 0o440}
    told = (ROOT / "docs" / "fleet.md").read_text()
    assert f"secret generic {volume['secret']['secretName']} --from-file={file.name}=" in told
    assert not any(each["kind"] == "Secret" for each in rendered(GOSSIP)), "a key is nobody's manifest"


def test_only_the_pods_of_the_set_reach_each_other_by_gossip() -> None:
    policy = one(GOSSIP, "NetworkPolicy", "noetl-chain-gossip")["spec"]
    stateful = one(GOSSIP, "StatefulSet")
    assert policy["podSelector"]["matchLabels"].items() <= (
        stateful["spec"]["template"]["metadata"]["labels"].items()
    )
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (ingress,), (egress,) = policy["ingress"], policy["egress"]
    # A peer without a namespaceSelector is one of this namespace.
    assert ingress["from"] == egress["to"] == [{"podSelector": policy["podSelector"]}]
    port = int(one(GOSSIP, "ConfigMap")["data"]["NOETL_CHAIN_GOSSIP_BIND"].split(":")[1])
    both = [{"port": port, "protocol": protocol} for protocol in ("UDP", "TCP")]
    assert ingress["ports"] == egress["ports"] == both
    # What the base opens stays as it is, and without the component nobody speaks.
    assert one(GOSSIP, "NetworkPolicy", "noetl-chain") == one("k8s/overlays/prod", "NetworkPolicy")
    assert "7946" not in str(rendered("k8s/overlays/prod"))


def test_the_scrapers_find_the_port_by_its_name() -> None:
    (port,) = one("k8s/base", "Service")["spec"]["ports"]
    assert port["name"] == "metrics"
    kind = one("k8s/overlays/kind", "VMServiceScrape")["spec"]
    prod = one("k8s/overlays/prod", "PodMonitoring")["spec"]
    for spec in (kind, prod):
        assert spec["selector"]["matchLabels"] == {"app": "noetl-chain"}
        assert spec["endpoints"][0]["port"] == "metrics"


def test_a_native_sidecar_does_not_gate_its_pod() -> None:
    ours = our_container("tests/ops/native_sidecar")
    pod = one("tests/ops/native_sidecar", "StatefulSet")["spec"]["template"]["spec"]
    names = [each["name"] for each in pod["initContainers"]]
    assert sorted(names) == ["migrate", "noetl-chain"], "the server's own stays"
    assert ours["restartPolicy"] == "Always"
    assert "livenessProbe" in ours
    assert "readinessProbe" not in ours
    assert "startupProbe" not in ours
    (data,) = [mount for mount in ours["volumeMounts"] if mount["mountPath"] == "/data"]
    assert data["subPath"] == "noetl-chain"
    claims = [volume for volume in pod["volumes"] if volume["name"] == data["name"]]
    assert claims[0]["persistentVolumeClaim"]["claimName"]
    templates = one("tests/ops/native_sidecar", "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert [each["metadata"]["name"] for each in templates] == ["store"], "they cannot be changed"
    containers = [each["name"] for each in pod["containers"]]
    assert containers == ["server"]


def test_the_components_settings_differ_from_the_base_in_size_only() -> None:
    base, component = (
        dict(line.split("=", 1) for line in (ROOT / folder / "noetl-chain.env").read_text().split())
        for folder in ("k8s/base", "k8s/components/native-sidecar")
    )
    differing = {name for name in base | component if base.get(name) != component.get(name)}
    assert differing == {"NOETL_CHAIN_STORE_MAX_BYTES"}

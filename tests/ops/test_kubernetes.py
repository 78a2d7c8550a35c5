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

from sidecar.settings import Settings

ROOT: Final = Path(__file__).resolve().parents[2]
OVERLAYS: Final = ("k8s/base", "k8s/overlays/kind", "k8s/overlays/prod", "tests/ops/native_sidecar")
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


def one(folder: str, kind: str) -> dict[str, Any]:
    (found,) = [
        document
        for document in rendered(folder)
        if document["kind"] == kind and document["metadata"]["namespace"] != "vmstack"
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
    assert mounts == {"/data": False, "/tmp": False, "/etc/noetl-chain/postgres": True}
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
        **{
            name.removeprefix("NOETL_CHAIN_").lower(): value
            for name, value in values.items()
            if name.startswith("NOETL_CHAIN_")
        }
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
    assert [each["name"] for each in pod["initContainers"]][-1] == "noetl-chain" or "migrate" in [
        each["name"] for each in pod["initContainers"]
    ]
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

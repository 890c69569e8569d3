"""Unmodified kubectl, the oldest that is promised and the newest, and the Python client, against the API door."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import kubectl as kubectls
from tests.e2e.kubectl import Kubectl
from tests.integration.apiserver.background import Background, background

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "postgres.yaml"
OBJECTS = list(yaml.safe_load_all(EXAMPLE.read_text()))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Background]:
    with background(tmp_path) as running:
        yield running


@pytest.fixture(params=["1.32", "newest"])
def kubectl(api: Background, request: pytest.FixtureRequest) -> Kubectl:
    binary = kubectls.version_1_32() if request.param == "1.32" else kubectls.newest()
    return Kubectl(binary, api.kubeconfig)


def application(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"image": "img:1", **spec},
    }


def test_apply_creates_changes_and_then_leaves_alone(kubectl: Kubectl, tmp_path: Path) -> None:
    first = kubectl("apply", "-f", EXAMPLE)
    assert first.splitlines() == [
        "persistentvolume.orch.ks-tool.dev/pg-data created",
        "application.orch.ks-tool.dev/postgres-18 created",
    ]
    assert [line.split()[-1] for line in kubectl("apply", "-f", EXAMPLE).splitlines()] == ["unchanged", "unchanged"]
    changed = tmp_path / "changed.yaml"
    changed.write_text(EXAMPLE.read_text().replace("18-alpine", "17-alpine"))
    assert [line.split()[-1] for line in kubectl("apply", "-f", changed).splitlines()] == ["unchanged", "configured"]
    assert kubectl.get("app", "postgres-18")["spec"]["image"].endswith(":17-alpine")


def test_apply_removes_what_is_no_longer_in_the_file(kubectl: Kubectl) -> None:
    kubectl.apply(application("web", workingDir="/srv", env={"A": "1", "B": "2"}))
    kubectl.apply(application("web", env={"A": "1"}))
    spec = kubectl.get("app", "web")["spec"]
    assert ("workingDir" in spec, spec["env"]) == (False, {"A": "1"})


def test_apply_reports_what_is_missing_and_what_is_wrong(kubectl: Kubectl) -> None:
    said = kubectl.apply(application("web", nodeName="n9"))
    assert 'Warning: spec.nodeName: node "n9" not found' in said
    text = yaml.safe_dump(application("bad", bogus=1))
    failed = kubectl.run("apply", "-f", "-", input=text)
    assert failed.returncode == 1
    assert 'unknown field "spec.bogus"' in failed.stderr
    text = yaml.safe_dump(application("bad", workingDir="srv", restartPolicy="Sometimes"))
    failed = kubectl.run("apply", "-f", "-", input=text)
    assert 'The Application "bad" is invalid' in failed.stderr
    said = kubectl.run("apply", "--validate=warn", "-f", "-", input=yaml.safe_dump(application("odd", bogus=1))).stderr
    assert 'unknown field "spec.bogus"' in said


def test_diff_shows_the_change_and_changes_nothing(kubectl: Kubectl, tmp_path: Path) -> None:
    assert kubectl.run("diff", "-f", EXAMPLE).returncode == 1
    kubectl("apply", "-f", EXAMPLE)
    assert kubectl.run("diff", "-f", EXAMPLE).returncode == 0
    changed = tmp_path / "changed.yaml"
    changed.write_text(EXAMPLE.read_text().replace("18-alpine", "17-alpine"))
    shown = kubectl.run("diff", "-f", changed)
    assert shown.returncode == 1
    assert "+  image: docker.io/library/postgres:17-alpine" in shown.stdout
    assert kubectl.run("diff", "-f", EXAMPLE).returncode == 0


def test_dry_runs_store_nothing(kubectl: Kubectl) -> None:
    assert "created (server dry run)" in kubectl("apply", "--dry-run=server", "-f", EXAMPLE)
    assert kubectl.get("app")["items"] == []
    kubectl("apply", "-f", EXAMPLE)
    kubectl("delete", "--dry-run=server", "-f", EXAMPLE)
    assert "deletionTimestamp" not in kubectl.get("app", "postgres-18")["metadata"]


def test_server_side_apply_is_told_what_to_do_instead(kubectl: Kubectl) -> None:
    failed = kubectl.run("apply", "--server-side", "-f", EXAMPLE)
    assert failed.returncode == 1
    assert "leave --server-side out" in failed.stderr


def test_get_prints_tables(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", EXAMPLE)
    head, row = kubectl("get", "app").splitlines()
    assert head.split() == ["NAME", "IMAGE", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["postgres-18", "docker.io/library/postgres:18-alpine", "Pending", "0"]
    wide = kubectl("get", "apps", "-o", "wide").splitlines()
    assert wide[0].split()[5:] == ["NODE", "IP", "PORTS", "MESSAGE"]
    assert "5432/TCP" in wide[1]
    assert kubectl("get", "pv", "-o", "name").strip() == "persistentvolume.orch.ks-tool.dev/pg-data"
    assert "pod/postgres-18" in kubectl("get", "pods", "-o", "name")
    assert "application.orch.ks-tool.dev/postgres-18" in kubectl("get", "all", "-o", "name")
    everywhere = kubectl("get", "app", "-A", "--show-labels", "--sort-by=.metadata.name").splitlines()
    assert everywhere[0].split()[:2] == ["NAMESPACE", "NAME"]
    assert kubectl("get", "app", "-o", "jsonpath={.items[0].spec.nodeName}") == "sav-01"
    assert kubectl("get", "applications.v1.orch.ks-tool.dev", "postgres-18", "-o", "custom-columns=N:.metadata.name")
    missing = kubectl.run("get", "app", "none")
    assert missing.stderr.strip() == ('Error from server (NotFound): applications.orch.ks-tool.dev "none" not found')


def test_lists_come_in_chunks(kubectl: Kubectl) -> None:
    kubectl.apply(*(application(f"app-{n}") for n in range(7)))
    assert len(kubectl("get", "app", "--chunk-size=2", "--no-headers").splitlines()) == 7


def test_get_watch_prints_what_happens(kubectl: Kubectl) -> None:
    kubectl.apply(application("one"))
    command = kubectl.command("get", "app", "--watch", "--no-headers")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().split()[0] == "one"
        kubectl.apply(application("two"))
        assert watching.stdout.readline().split()[:2] == ["two", "img:1"]
        kubectl("patch", "app", "two", "--type=merge", "-p", '{"spec":{"image":"img:2"}}')
        assert watching.stdout.readline().split()[:2] == ["two", "img:2"]
        watching.terminate()


def test_one_object_is_watched_by_its_name(kubectl: Kubectl) -> None:
    kubectl.apply(application("one"), application("two"))
    command = kubectl.command("get", "app", "one", "--watch", "--no-headers")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().split()[:2] == ["one", "img:1"]
        kubectl("patch", "app", "two", "--type=merge", "-p", '{"spec":{"image":"img:2"}}')
        kubectl("patch", "app", "one", "--type=merge", "-p", '{"spec":{"image":"img:3"}}')
        assert watching.stdout.readline().split()[:2] == ["one", "img:3"]
        watching.terminate()


def test_patch_label_annotate_and_edit(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl.apply(application("web"))
    operations = json.dumps([{"op": "replace", "path": "/spec/image", "value": "img:2"}])
    kubectl("patch", "app", "web", "--type=json", "-p", operations)
    assert kubectl.get("app", "web")["spec"]["image"] == "img:2"
    kubectl("patch", "app", "web", "-p", '{"spec":{"image":"img:3"}}')
    assert kubectl.get("app", "web")["spec"]["image"] == "img:3"
    kubectl("label", "app", "web", "team=x")
    kubectl("annotate", "app", "--all", "note=y")
    assert kubectl("get", "app", "-l", "team=x", "-o", "name").strip() == "application.orch.ks-tool.dev/web"
    assert kubectl.get("app", "web")["metadata"]["annotations"]["note"] == "y"
    monkeypatch.setenv("KUBE_EDITOR", "sed -i s/img:3/img:4/")
    assert "edited" in kubectl("edit", "app", "web")
    assert kubectl.get("app", "web")["spec"]["image"] == "img:4"
    stale = kubectl.run("label", "app", "web", "team=z", "--overwrite", "--resource-version=1")
    assert "Conflict" in stale.stderr


def test_replace_needs_the_current_version(kubectl: Kubectl) -> None:
    kubectl.apply(application("web"))
    obj = kubectl.get("app", "web")
    obj["spec"]["image"] = "img:2"
    text = yaml.safe_dump(obj)
    kubectl("replace", "-f", "-", input=text)
    assert "Conflict" in kubectl.run("replace", "-f", "-", input=text).stderr


def test_core_kinds_are_created_with_their_own_commands(kubectl: Kubectl) -> None:
    kubectl("create", "secret", "generic", "db", "--from-literal=password=hunter2", "--from-literal=empty=")
    kubectl("create", "configmap", "settings", "--from-literal=LOG=debug")
    kubectl("create", "namespace", "team")
    assert kubectl.get("secret", "db")["data"] == {"password": "aHVudGVyMg==", "empty": ""}
    assert kubectl.get("cm", "settings")["data"] == {"LOG": "debug"}
    again = kubectl.run("create", "namespace", "team")
    assert again.stderr.strip() == 'Error from server (AlreadyExists): namespaces "team" already exists'
    head, row = kubectl("get", "secrets").splitlines()
    assert (head.split(), row.split()[:3]) == (["NAME", "TYPE", "DATA", "AGE"], ["db", "Opaque", "2"])
    kubectl("patch", "secret", "db", "-p", '{"stringData":{"more":"x"}}')
    assert set(kubectl.get("secret", "db")["data"]) == {"password", "empty", "more"}


def test_delete_waits_until_the_object_is_gone(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "a")
    kubectl("create", "configmap", "b")
    assert "deleted" in kubectl("delete", "cm", "a", timeout=20)
    assert "deleted" in kubectl("delete", "cm", "--all", "--timeout=10s", timeout=20)
    kubectl.apply(application("web", nodeName="n1"))
    assert kubectl.run("delete", "app", "web", "--timeout=1s").returncode == 1
    assert "Terminating" in kubectl("get", "app", "web")
    kubectl("patch", "app", "web", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert kubectl("get", "app").strip() == ""


def test_wait_sees_conditions_and_deletions(kubectl: Kubectl) -> None:
    kubectl.apply(application("web"))
    command = kubectl.command("wait", "app/web", "--for=condition=Ready", "--timeout=20s")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        kubectl("patch", "app", "web", "--subresource=status", "--type=merge", "-p", json.dumps(status))
        assert waiting.communicate(timeout=20)[0].strip() == "application.orch.ks-tool.dev/web condition met"
    kubectl("wait", "app/web", "--for=jsonpath={.spec.image}=img:1", "--timeout=5s")
    kubectl("create", "configmap", "c")
    command = kubectl.command("wait", "cm/c", "--for=delete", "--timeout=20s")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        kubectl("delete", "cm", "c")
        assert waiting.wait(20) == 0


def test_explain_prints_the_documentation(kubectl: Kubectl) -> None:
    text = kubectl("explain", "app.spec.volumeMounts")
    assert "VERSION:    v1" in text
    assert "Name of the PersistentVolume to mount" in text
    assert "Directory inside the volume" in kubectl("explain", "app.spec.volumeMounts.subPath")
    assert "reclaimPolicy" in kubectl("explain", "pv", "--recursive")
    assert "Text values by key" in kubectl("explain", "cm.data")


def test_describe_shows_the_object_and_its_events(kubectl: Kubectl) -> None:
    kubectl.apply(application("web"))
    uid = kubectl.get("app", "web")["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "web.1"},
        "involvedObject": {
            "apiVersion": "orch.ks-tool.dev/v1",
            "kind": "Application",
            "namespace": "default",
            "name": "web",
            "uid": uid,
        },
        "reason": "Pulled",
        "message": "image is there",
        "type": "Normal",
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    kubectl("create", "-f", "-", input=yaml.safe_dump(event))
    text = kubectl("describe", "app", "web")
    assert "Image:" in text
    assert "image is there" in text
    assert "image is there" in kubectl("events", "--for", "app/web")
    assert "application/web" in kubectl("get", "events")
    assert "Name:" in kubectl("describe", "ns", "default")
    assert "web" in kubectl("describe", "pod", "web")


def test_discovery_commands(kubectl: Kubectl) -> None:
    resources = kubectl("api-resources", "--no-headers")
    assert any(line.split()[:2] == ["applications", "app,apps"] for line in resources.splitlines())
    assert "orch.ks-tool.dev/v1" in kubectl("api-versions").splitlines()
    assert "is running at" in kubectl("cluster-info")
    assert "v1.33.0+horchestra" in kubectl.run("version").stdout
    assert kubectl("auth", "can-i", "create", "app").strip() == "yes"
    assert "admin" in kubectl("auth", "whoami")
    assert kubectl("get", "--raw", "/readyz") == "ok"


def test_logs_of_an_absent_node_are_refused_with_its_name(kubectl: Kubectl, api: Background) -> None:
    from horchestra.apimachinery.errors import StatusError

    api.door.node.error = StatusError("ServiceUnavailable", 'node "n1" is not connected')
    kubectl.apply(application("web", nodeName="n1"))
    for target in ("web", "app/web", "application/web"):
        failed = kubectl.run("logs", target)
        assert failed.stderr.strip() == 'Error from server (ServiceUnavailable): node "n1" is not connected'
    kubectl("patch", "app", "web", "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Running"}}')
    for words in (("exec", "web", "--", "ls"), ("port-forward", "web", "8080"), ("attach", "web")):
        assert "is not served by this version" in kubectl.run(*words).stderr


def test_logs_are_followed_until_the_user_has_seen_enough(kubectl: Kubectl, api: Background) -> None:
    kubectl.apply(application("web", nodeName="n1"))
    command = kubectl.command("logs", "-f", "--tail=5", "application/web")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        api.run(api.door.node.opened.wait())
        source = api.door.node.streams[0]
        for line in ("one", "two"):
            api.run(source.put(f"{line}\n".encode()))
            assert following.stdout.readline() == f"{line}\n"
        assert json.loads(api.door.node.asked[0][2])["tail_lines"] == 5
        following.terminate()
    api.run(asyncio.wait_for(source.closed.wait(), 5))


@pytest.fixture
def python(api: Background) -> Any:
    import kubernetes

    return kubernetes.config.new_client_from_config(str(api.kubeconfig))


def test_the_python_client_reads_writes_and_watches(api: Background, python: Any) -> None:
    import kubernetes

    core = kubernetes.client.CoreV1Api(python)
    custom = kubernetes.client.CustomObjectsApi(python)
    core.create_namespaced_config_map("default", {"metadata": {"name": "c"}, "data": {"a": "b"}})
    assert core.read_namespaced_config_map("c", "default").data == {"a": "b"}
    core.patch_namespaced_config_map("c", "default", {"data": {"a": None, "x": "y"}})
    assert core.read_namespaced_config_map("c", "default").data == {"x": "y"}
    group = ("orch.ks-tool.dev", "v1", "default", "applications")
    custom.create_namespaced_custom_object(*group, application("web"))
    custom.patch_namespaced_custom_object(*group, "web", {"spec": {"image": "img:2"}})
    assert custom.get_namespaced_custom_object(*group, "web")["spec"]["image"] == "img:2"
    assert [pod.metadata.name for pod in core.list_namespaced_pod("default").items] == ["web"]
    watch = kubernetes.watch.Watch()
    seen = []
    for event in watch.stream(core.list_namespaced_config_map, "default", timeout_seconds=10):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 1:
            core.delete_namespaced_config_map("c", "default")
        else:
            watch.stop()
    assert seen == [("ADDED", "c"), ("DELETED", "c")]
    with pytest.raises(kubernetes.client.ApiException) as caught:
        core.read_namespaced_config_map("c", "default")
    assert caught.value.status == 404


def test_the_dynamic_python_client_finds_the_kinds(api: Background, python: Any) -> None:
    import kubernetes

    os.environ.setdefault("KUBECACHEDIR", str(api.kubeconfig.parent))
    dynamic = kubernetes.dynamic.DynamicClient(python, cache_file=str(api.kubeconfig.parent / "discovery"))
    applications = dynamic.resources.get(api_version="orch.ks-tool.dev/v1", kind="Application")
    applications.create(body=application("web"), namespace="default")
    applications.patch(
        name="web", namespace="default", body={"spec": {"image": "x"}}, content_type="application/merge-patch+json"
    )
    assert applications.get(name="web", namespace="default").spec.image == "x"
    assert [o.metadata.name for o in applications.get(namespace="default").items] == ["web"]

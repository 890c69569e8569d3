import pytest

from horchestra.apimachinery.admission import User
from horchestra.authz.authorizer import Attributes, Authorizer, Signal, denial

ADMIN = User("admin", ("system:masters", "system:authenticated"))
NODE = User("n1", ("system:nodes", "system:authenticated"))
ALICE = User("alice", ("team", "system:authenticated"))
NOBODY = User("system:anonymous", ("system:unauthenticated",))
APPS = ("orch.ks-tool.dev", "applications")


def allowed(user: User, verb: str, group: str = "", resource: str = "", subresource: str = "", name: str = "") -> bool:
    return Authorizer().authorize(Attributes(user, verb, group, resource, subresource, "", name)).allowed


def may_get(user: User, path: str) -> bool:
    return Authorizer().authorize(Attributes(user, "get", path=path)).allowed


def test_masters_may_do_everything() -> None:
    assert allowed(ADMIN, "delete", "", "secrets", name="x")
    assert allowed(ADMIN, "impersonate", "", "users")
    assert may_get(ADMIN, "/metrics")


def test_a_node_reports_the_status_of_its_own_node_object() -> None:
    for verb in ("get", "patch", "update"):
        assert allowed(NODE, verb, "", "nodes", "status", "n1")
    for verb in ("get", "list", "watch"):
        assert allowed(NODE, verb, "", "nodes", "", "n1")


@pytest.mark.parametrize(
    ("verb", "group", "resource", "subresource", "name"),
    [
        ("patch", "", "nodes", "", "n1"),
        ("update", "", "nodes", "", "n1"),
        ("delete", "", "nodes", "", "n1"),
        ("create", "", "nodes", "", ""),
        ("get", "", "nodes", "", "n2"),
        ("list", "", "nodes", "", ""),
        ("patch", "", "nodes", "status", "n2"),
        ("get", *APPS, "", "web"),
        ("patch", *APPS, "status", "web"),
        ("create", *APPS, "", ""),
        ("get", "", "secrets", "", "db"),
        ("list", "", "pods", "", "n1"),
        ("get", "orch.ks-tool.dev", "nodes", "", "n1"),
    ],
)
def test_a_node_may_do_nothing_else(verb: str, group: str, resource: str, subresource: str, name: str) -> None:
    assert not allowed(NODE, verb, group, resource, subresource, name)


def test_others_may_look_at_what_is_served_and_at_themselves() -> None:
    for path in ("/api", "/apis", "/apis/orch.ks-tool.dev/v1", "/openapi/v3", "/version", "/livez", "/readyz"):
        assert may_get(ALICE, path)
    assert allowed(ALICE, "create", "authentication.k8s.io", "selfsubjectreviews")
    assert not allowed(ALICE, "get", *APPS, name="web")
    assert not allowed(ALICE, "list", "", "namespaces")
    assert not may_get(ALICE, "/metrics")
    assert not may_get(ALICE, "/apix")


def test_who_is_nobody_sees_only_that_the_server_lives() -> None:
    assert all(may_get(NOBODY, path) for path in ("/livez", "/readyz", "/healthz", "/version"))
    assert not any(may_get(NOBODY, path) for path in ("/api", "/apis", "/openapi/v3", "/metrics", "/", "/version/x"))
    assert not allowed(NOBODY, "create", "authentication.k8s.io", "selfsubjectreviews")


def test_a_denial_is_worded_as_kubernetes_words_it() -> None:
    attributes = Attributes(ALICE, "list", *APPS, namespace="default")
    decision = Authorizer().authorize(attributes)
    expected = (
        'User "alice" cannot list resource "applications" in API group "orch.ks-tool.dev" in the namespace "default"'
    )
    assert denial(attributes, decision) == expected


def test_a_denial_at_the_cluster_scope_names_the_subresource_and_the_reason() -> None:
    attributes = Attributes(NODE, "patch", "", "nodes", "status", "", "n2")
    expected = (
        'User "n1" cannot patch resource "nodes/status" in API group "" at the cluster scope: '
        'node "n1" may only use its own Node object'
    )
    assert denial(attributes, Authorizer().authorize(attributes)) == expected


def test_a_signal_fires_once_and_for_late_comers() -> None:
    signal, heard = Signal(), []
    signal.subscribe(lambda: heard.append("a"))
    signal.subscribe(lambda: heard.append("b"))()
    signal.fire()
    signal.fire()
    signal.subscribe(lambda: heard.append("late"))
    assert heard == ["a", "late"]

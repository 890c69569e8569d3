import pytest

from horchestra.apimachinery.errors import StatusError
from horchestra.apiserver.routes import Route, parse


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/api/v1/nodes", Route("/api/v1/nodes", "", "v1", "nodes")),
        ("/api/v1/nodes/n1/status", Route("/api/v1/nodes/n1/status", "", "v1", "nodes", "", "n1", "status")),
        ("/api/v1/namespaces", Route("/api/v1/namespaces", "", "v1", "namespaces")),
        ("/api/v1/namespaces/a", Route("/api/v1/namespaces/a", "", "v1", "namespaces", "", "a")),
        (
            "/api/v1/namespaces/a/status",
            Route("/api/v1/namespaces/a/status", "", "v1", "namespaces", "", "a", "status"),
        ),
        (
            "/api/v1/namespaces/a/pods/p/log",
            Route("/api/v1/namespaces/a/pods/p/log", "", "v1", "pods", "a", "p", "log"),
        ),
        ("/apis/g.io/v2/things/t", Route("/apis/g.io/v2/things/t", "g.io", "v2", "things", "", "t")),
        ("/apis/g.io/v2/namespaces/a/things", Route("/apis/g.io/v2/namespaces/a/things", "g.io", "v2", "things", "a")),
        ("/apis/g.io/v2", Route("/apis/g.io/v2")),
        ("/apis/", Route("/apis")),
        ("/version/", Route("/version")),
        ("/", Route("/")),
        ("/api/v1//pods", Route("/api/v1//pods")),
    ],
)
def test_a_path_names_what_kubernetes_says_it_names(path: str, route: Route) -> None:
    assert parse(path.encode()) == route


def test_a_percent_encoded_name_is_decoded_once() -> None:
    assert parse(b"/api/v1/nodes/a%2520b").name == "a%20b"
    assert parse(b"/api/v1/nodes/%6e1").name == "n1"


@pytest.mark.parametrize(
    "path", [b"/api/v1/namespaces/a%2Fb/pods", b"/api/v1/nodes/a%2fb", b"/api/v1/nodes/%ff", b"/a%00"]
)
def test_an_encoding_that_hides_something_is_refused(path: bytes) -> None:
    with pytest.raises(StatusError, match="path") as caught:
        parse(path)
    assert caught.value.code == 400

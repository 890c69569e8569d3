import pytest

from horchestra.apiserver.negotiation import Shape, discovery_version, shape

TABLE = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", Shape.OBJECT),
        ("*/*", Shape.OBJECT),
        ("application/json", Shape.OBJECT),
        (TABLE, Shape.TABLE),
        ("application/json, */*", Shape.OBJECT),
        ("application/vnd.kubernetes.protobuf,application/json", Shape.OBJECT),
        ("application/vnd.kubernetes.protobuf", Shape.OBJECT),
        ("text/html", Shape.OBJECT),
        ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", Shape.METADATA),
        ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json", Shape.METADATA),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", Shape.OBJECT),
        ("application/json;as=Table;v=v1;g=meta.k8s.io;q=0.5,application/json", Shape.OBJECT),
    ],
)
def test_the_best_shape_that_is_known_is_given(accept: str, expected: Shape) -> None:
    assert shape(accept) is expected


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json", "v2"),
        ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json", "v2beta1"),
        ("application/json", ""),
        ("application/json, */*", ""),
        ("", ""),
    ],
)
def test_aggregated_discovery_is_given_to_who_asks_for_it(accept: str, expected: str) -> None:
    assert discovery_version(accept) == expected

"""The kinds that come with Horchestra. To add one: write its file, list it here, write examples/<kind>.yaml."""

from horchestra.apimachinery.registry import Registry

from .application import Application
from .configmap import ConfigMap
from .event import Event
from .namespace import Namespace
from .node import Node
from .noderemoval import NodeRemoval
from .persistentvolume import PersistentVolume
from .secret import Secret


def builtin() -> Registry:
    """In the order in which clients resolve short names."""
    registry = Registry()
    for cls in (Namespace, Node, Secret, ConfigMap, Event, Application, PersistentVolume, NodeRemoval):
        registry.add(cls)
    return registry

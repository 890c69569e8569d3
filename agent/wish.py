"""What the controller wants of one application, with all it needs of other objects."""

from collections.abc import Mapping
from dataclasses import dataclass

from horchestra.apimachinery.desired import DesiredState, SecretData
from horchestra.kinds.application import Application
from horchestra.kinds.persistentvolume import PersistentVolume


@dataclass(frozen=True, slots=True)
class Wish:
    """secrets: (Secret|ConfigMap, name) in its namespace. `values_known` is False after a start of the agent, until the
    controller sends the values again: what is sealed on disk is then used as it is."""

    application: Application
    volumes: Mapping[str, PersistentVolume]
    secrets: Mapping[tuple[str, str], SecretData]
    pull_secrets: tuple[SecretData, ...] = ()
    lineage: str = ""
    values_known: bool = True

    @property
    def generation(self) -> int:
        return self.application.metadata.generation


def of_application(
    application: Application,
    desired: DesiredState,
    volumes: Mapping[str, PersistentVolume],
    lineage: str,
    values_known: bool,
) -> Wish:
    """The part of a desired state that concerns `application`, and nothing else: no change elsewhere changes it."""
    meta = application.metadata
    mounted = {mount.pv for mount in application.spec.volumeMounts if mount.pv}
    named = _named(application)
    here = {(data.kind, data.name): data for data in desired.secrets if data.namespace == meta.namespace}
    pull = desired.registry_credentials.get(meta.uid, [])
    return Wish(
        application=application,
        volumes={name: volume for name, volume in volumes.items() if name in mounted},
        secrets={key: data for key, data in here.items() if key in named},
        pull_secrets=tuple(here["Secret", name] for name in pull if ("Secret", name) in here),
        lineage=lineage,
        values_known=values_known,
    )


def _named(application: Application) -> set[tuple[str, str]]:
    """Secrets and ConfigMaps that it takes variables or files from."""
    named = set()
    for mount in application.spec.volumeMounts:
        if mount.secret:
            named.add(("Secret", mount.secret.name))
        if mount.configMap:
            named.add(("ConfigMap", mount.configMap.name))
    for variable in application.spec.environment():
        if variable.valueFrom and variable.valueFrom.secretKeyRef:
            named.add(("Secret", variable.valueFrom.secretKeyRef.name))
        if variable.valueFrom and variable.valueFrom.configMapKeyRef:
            named.add(("ConfigMap", variable.valueFrom.configMapKeyRef.name))
    return named

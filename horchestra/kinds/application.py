"""Application: one process on one node."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from horchestra.apimachinery import quantity
from horchestra.apimachinery.admission import AdmissionRequest, Operation, ReadView, Reference
from horchestra.apimachinery.desired import node_removal
from horchestra.apimachinery.errors import Cause, invalid
from horchestra.apimachinery.meta import APIObject, Condition, Model
from horchestra.apimachinery.names import is_dns1123_subdomain, name_fault
from horchestra.apimachinery.registry import Column, Resource

from . import image
from .placement import conflicts

NODE_FINALIZER = "orch.ks-tool.dev/node"
"""Held until the node confirms that nothing of the application is left on it."""

Quantity = str | int | float

_CAPABILITY = re.compile(r"(CAP_)?[A-Z_]{2,32}")
_RESERVED_PATHS = ("/", "/proc", "/sys", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf")


class KeySelector(Model):
    name: str
    """Name of the Secret or ConfigMap, in the application's namespace."""
    key: str
    """Key in it."""
    optional: bool = False
    """When true, a missing object or key leaves the variable unset instead of holding the start."""


class EnvVarSource(Model):
    secretKeyRef: KeySelector | None = None
    """Value from a key of a Secret. It reaches the process only, never a unit file."""
    configMapKeyRef: KeySelector | None = None
    """Value from a key of a ConfigMap."""


class EnvVar(Model):
    name: str
    """Name of the variable."""
    value: str = ""
    """Its value, handed over byte for byte; nothing in it is expanded."""
    valueFrom: EnvVarSource | None = None
    """Where the value comes from, instead of value."""


class Port(Model):
    name: str = ""
    """Name of the port, for people."""
    port: int = Field(ge=1, le=65535)
    """Port the process listens on, on the node's own addresses."""
    protocol: Literal["TCP", "UDP"] = "TCP"
    """TCP or UDP."""

    @property
    def called(self) -> str:
        """`8080/TCP`"""
        return f"{self.port}/{self.protocol}"


class Resources(Model):
    requests: dict[str, Quantity] = Field(default_factory=dict)
    """What is reserved: cpu (CPUWeight) and memory (MemoryLow). Defaults to the limits where those are set."""
    limits: dict[str, Quantity] = Field(default_factory=dict)
    """What cannot be exceeded: cpu (CPUQuota) and memory (MemoryMax)."""


class Capabilities(Model):
    drop: list[str] = Field(default_factory=list)
    """Capabilities to take away besides what the profile takes; ALL takes every one."""


class SecurityContext(Model):
    runAsUser: int | None = Field(default=None, ge=0, le=2**32 - 2)
    """User id of the process, instead of the image's user."""
    runAsGroup: int | None = Field(default=None, ge=0, le=2**32 - 2)
    """Group id of the process, instead of the image's group."""
    fsGroup: int | None = Field(default=None, ge=0, le=2**32 - 2)
    """Group that is given the volumes on each start."""
    runAsNonRoot: bool = False
    """Refuses to run as root; an image without a user gets a user id of its own."""
    capabilities: Capabilities = Field(default_factory=Capabilities)
    """Linux capabilities."""
    profile: Literal["package", "hardened", "sandbox"] = "hardened"
    """How tightly systemd confines the process: package (as a distribution's package would), hardened, or sandbox."""


class Tmpfs(Model):
    size: Quantity
    """Most memory it may take, as 64Mi."""


class LocalReference(Model):
    name: str
    """Name of the object in the application's namespace."""


class VolumeMount(Model):
    path: str
    """Absolute path in the application's root."""
    pv: str | None = None
    """Name of the PersistentVolume to mount."""
    tmpfs: Tmpfs | None = None
    """An empty file system in memory, new at each start."""
    secret: LocalReference | None = None
    """A Secret whose keys become files, in memory only."""
    configMap: LocalReference | None = None
    """A ConfigMap whose keys become files."""
    subPath: str = ""
    """Directory inside the volume to mount instead of its root."""
    readOnly: bool = False
    """Mount without write access."""


class ApplicationSpec(Model):
    image: str
    """OCI image, as docker.io/library/postgres:18-alpine or with @sha256:..."""
    nodeName: str = ""
    """Node to run on. Without it the application stays Pending until a scheduler chooses one."""
    command: list[str] | None = None
    """Replaces the image's entrypoint."""
    args: list[str] | None = None
    """Replaces the image's command."""
    workingDir: str = ""
    """Working directory, instead of the image's."""
    env: dict[str, str] | list[EnvVar] = Field(default_factory=dict)
    """Environment: a map of names to values, or a list of name with value or valueFrom."""
    ports: list[Port] = Field(default_factory=list)
    """Ports the process listens on; two applications of a node cannot declare the same one."""
    resources: Resources = Field(default_factory=Resources)
    """Reservations and limits."""
    restartPolicy: Literal["Always", "OnFailure", "Never"] = "Always"
    """Always: a service. OnFailure: until it succeeds. Never: a job, run once."""
    activeDeadlineSeconds: int | None = Field(default=None, ge=1)
    """Ends the application as Failed after this time, restarts included."""
    backoffLimit: int | None = Field(default=None, ge=0)
    """With OnFailure: retries before it counts as Failed; unset retries for ever."""
    terminationGracePeriodSeconds: int = Field(default=30, ge=0, le=86400)
    """Seconds between the stop signal and SIGKILL."""
    minReadySeconds: int = Field(default=10, ge=0, le=86400)
    """Seconds without a restart after which a new version counts as Ready."""
    progressDeadlineSeconds: int = Field(default=600, ge=1, le=86400)
    """Seconds a new version has to become Ready before the node goes back to the previous one."""
    securityContext: SecurityContext = Field(default_factory=SecurityContext)
    """User, capabilities and confinement."""
    volumeMounts: list[VolumeMount] = Field(default_factory=list)
    """What is mounted into the read-only root."""
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When to ask the registry for the image: once for each new version of the spec at the most."""
    imagePullSecrets: list[LocalReference] = Field(default_factory=list)
    """Secrets of type kubernetes.io/dockerconfigjson to pull with."""

    def environment(self) -> list[EnvVar]:
        """Both forms as one list."""
        if isinstance(self.env, list):
            return self.env
        return [EnvVar(name=name, value=value) for name, value in self.env.items()]


class PullProgress(Model):
    layersDone: int = 0
    """Layers unpacked."""
    layersTotal: int = 0
    """Layers of the image."""
    bytesDone: int = 0
    """Compressed bytes received."""
    bytesTotal: int = 0
    """Compressed bytes of the image."""


Phase = Literal["Pending", "Pulling", "Starting", "Running", "Succeeded", "Failed", "Terminating", "Unknown"]


class ApplicationStatus(Model):
    phase: Phase = "Pending"
    """Pending, Pulling, Starting, Running, Succeeded, Failed, Terminating or Unknown (its node is lost)."""
    reason: str = ""
    """CamelCase reason of the phase: CrashLoopBackOff, ImageNotFound, Unscheduled, ..."""
    message: str = ""
    """What it means and what to do."""
    conditions: list[Condition] = Field(default_factory=list)
    """Scheduled, ImageReady, VolumesReady, Started, Ready, and what else is worth knowing."""
    observedGeneration: int | None = None
    """Generation of the spec that this status speaks of."""
    node: str = ""
    """Node it runs on."""
    addresses: list[str] = Field(default_factory=list)
    """Addresses of the node."""
    restartCount: int = 0
    """Automatic restarts since the application was created."""
    imageDigest: str = ""
    """Digest of the manifest that runs."""
    exitCode: int | None = None
    """Exit code of the last process that ended; 128 and the signal's number when a signal ended it."""
    pull: PullProgress | None = None
    """Progress of the image while Pulling."""
    startedAt: str | None = None
    """When the process was started (RFC 3339)."""
    finishedAt: str | None = None
    """When the last process ended (RFC 3339)."""
    currentRevision: int | None = None
    """Generation whose process runs."""
    failedRevision: int | None = None
    """Generation that did not become Ready and was rolled back."""


def _status(obj: dict[str, Any]) -> str:
    status = obj.get("status", {})
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if status.get("reason") == "CrashLoopBackOff":
        return "CrashLoopBackOff"
    return str(status.get("phase", "Pending"))


def _ports(obj: dict[str, Any]) -> str:
    return ",".join(f"{p['port']}/{p.get('protocol', 'TCP')}" for p in obj["spec"].get("ports", []))


def _variable(path: str, name: str, value: str) -> Iterator[Cause]:
    if not name or "=" in name or "\0" in name:
        yield Cause("FieldValueInvalid", "a variable's name is not empty and has no '=' or NUL", f"{path}.name")
    if "\0" in value:
        yield Cause("FieldValueInvalid", "a NUL byte cannot be passed in the environment", f"{path}.value")


class Application(APIObject):
    """One process on one node: an OCI image run as a hardened systemd unit, and kept so."""

    resource = Resource(
        group="orch.ks-tool.dev",
        version="v1",
        kind="Application",
        plural="applications",
        singular="application",
        short_names=("app", "apps"),
        categories=("all",),
        status=True,
        columns=(
            Column("Image", lambda o: o["spec"]["image"], description="Image it runs"),
            Column("Status", _status, description="Phase, or why it does not run"),
            Column("Restarts", lambda o: o.get("status", {}).get("restartCount", 0), type="integer"),
            Column("Node", lambda o: o["spec"].get("nodeName") or "<none>", wide=True, description="Node it runs on"),
            Column("IP", lambda o: ",".join(o.get("status", {}).get("addresses", [])[:1]), wide=True),
            Column("Ports", _ports, wide=True, description="Ports it listens on"),
            Column("Message", lambda o: o.get("status", {}).get("message", ""), wide=True, description="What to know"),
        ),
        field_selectors={"spec.nodeName": "spec.nodeName", "status.phase": "status.phase"},
    )

    spec: ApplicationSpec = Field(default=...)
    """What to run, where and how."""
    status: ApplicationStatus = Field(default_factory=ApplicationStatus)
    """What was observed, by the node and by the controller."""

    @classmethod
    def finalizers(cls) -> list[str]:
        return [NODE_FINALIZER]

    def validate_object(self) -> list[Cause]:
        return [*self._names(), *self._process(), *self._resources(), *self._mounts()]

    def _names(self) -> Iterator[Cause]:
        if fault := name_fault(self.metadata.name, most=63):
            yield Cause("FieldValueInvalid", fault, "metadata.name")
        if self.spec.nodeName and not is_dns1123_subdomain(self.spec.nodeName):
            yield Cause("FieldValueInvalid", f"{self.spec.nodeName!r} is not the name of a node", "spec.nodeName")
        if fault := image.fault(self.spec.image):
            yield Cause("FieldValueInvalid", fault, "spec.image")

    def _process(self) -> Iterator[Cause]:
        spec = self.spec
        for field, words in (("command", spec.command), ("args", spec.args)):
            for i, word in enumerate(words or []):
                if "\0" in word:
                    yield Cause("FieldValueInvalid", "a NUL byte cannot be passed to a process", f"spec.{field}[{i}]")
        if spec.workingDir and (not spec.workingDir.startswith("/") or "\0" in spec.workingDir):
            yield Cause("FieldValueInvalid", "must be an absolute path", "spec.workingDir")
        if spec.backoffLimit is not None and spec.restartPolicy == "Always":
            yield Cause("FieldValueInvalid", "needs restartPolicy OnFailure or Never", "spec.backoffLimit")
        yield from self._env()
        seen: set[tuple[int, str]] = set()
        for i, port in enumerate(spec.ports):
            if (port.port, port.protocol) in seen:
                yield Cause("FieldValueDuplicate", f"{port.called} is listed twice", f"spec.ports[{i}]")
            seen.add((port.port, port.protocol))
        for i, capability in enumerate(spec.securityContext.capabilities.drop):
            if not _CAPABILITY.fullmatch(capability):
                path = f"spec.securityContext.capabilities.drop[{i}]"
                yield Cause("FieldValueInvalid", f"{capability!r} is not the name of a capability, as NET_RAW", path)
        if spec.securityContext.runAsNonRoot and spec.securityContext.runAsUser == 0:
            path = "spec.securityContext.runAsUser"
            yield Cause("FieldValueInvalid", "is root, which runAsNonRoot forbids", path)

    def _env(self) -> Iterator[Cause]:
        env = self.spec.env
        if isinstance(env, dict):  # the common form, and long: nothing is built for it
            for name, value in env.items():
                if not name or "=" in name or "\0" in name or "\0" in value:
                    yield from _variable(f"spec.env[{name}]", name, value)
            return
        seen: set[str] = set()
        for i, var in enumerate(env):
            path = f"spec.env[{i}]"
            yield from _variable(path, var.name, var.value)
            if var.name in seen:
                yield Cause("FieldValueDuplicate", f"{var.name} is listed twice", f"{path}.name")
            seen.add(var.name)
            source = var.valueFrom
            if source and (source.secretKeyRef is None) == (source.configMapKeyRef is None):
                message = "must name exactly one of secretKeyRef and configMapKeyRef"
                yield Cause("FieldValueInvalid", message, f"{path}.valueFrom")
            if source and var.value:
                yield Cause("FieldValueInvalid", "may not be set together with value", f"{path}.valueFrom")

    def _resources(self) -> Iterator[Cause]:
        amounts: dict[tuple[str, str], Any] = {}
        for side in ("requests", "limits"):
            for name, text in getattr(self.spec.resources, side).items():
                path = f"spec.resources.{side}.{name}"
                if name not in ("cpu", "memory"):
                    yield Cause("FieldValueNotSupported", f"{name!r} is not known; use cpu or memory", path)
                    continue
                try:
                    amounts[side, name] = quantity.parse(text)
                    if amounts[side, name] < 0 or (side == "limits" and amounts[side, name] == 0):
                        yield Cause("FieldValueInvalid", f"{text} must be more than 0", path)
                except ValueError as error:
                    yield Cause("FieldValueInvalid", str(error), path)
        for name in ("cpu", "memory"):
            request, limit = amounts.get(("requests", name)), amounts.get(("limits", name))
            if request is not None and limit is not None and request > limit:
                asked, most = self.spec.resources.requests[name], self.spec.resources.limits[name]
                path = f"spec.resources.requests.{name}"
                yield Cause("FieldValueInvalid", f"{asked} must be less than or equal to {name} limit of {most}", path)

    def _mounts(self) -> Iterator[Cause]:
        seen: dict[str, int] = {}
        for i, mount in enumerate(self.spec.volumeMounts):
            path = f"spec.volumeMounts[{i}]"
            sources = [s for s in ("pv", "tmpfs", "secret", "configMap") if getattr(mount, s) is not None]
            if len(sources) != 1:
                said = " and ".join(sources) if sources else "none"
                yield Cause(
                    "FieldValueInvalid", f"must name one of pv, tmpfs, secret, configMap; it names {said}", path
                )
            if not mount.path.startswith("/") or posixpath.normpath(mount.path) != mount.path or "\0" in mount.path:
                message = f"{mount.path!r} must be an absolute path without '..', '//' or a final '/'"
                yield Cause("FieldValueInvalid", message, f"{path}.path")
            elif mount.path in _RESERVED_PATHS or mount.path.startswith(("/proc/", "/sys/", "/dev/")):
                yield Cause("FieldValueInvalid", f"{mount.path} is made by the system", f"{path}.path")
            if mount.path in seen:
                message = f"{mount.path} is already the path of volumeMounts[{seen[mount.path]}]"
                yield Cause("FieldValueDuplicate", message, f"{path}.path")
            seen.setdefault(mount.path, i)
            if mount.subPath and (
                sources != ["pv"]
                or mount.subPath.startswith("/")
                or ".." in mount.subPath.split("/")
                or any(ord(c) < 32 or ord(c) == 127 for c in mount.subPath)
            ):
                message = "must be a relative path without '..' and control characters, and only with pv"
                yield Cause("FieldValueInvalid", message, f"{path}.subPath")
            if mount.tmpfs:
                try:
                    if quantity.byte_count(mount.tmpfs.size) <= 0:
                        yield Cause("FieldValueInvalid", "must be more than 0", f"{path}.tmpfs.size")
                except ValueError as error:
                    yield Cause("FieldValueInvalid", str(error), f"{path}.tmpfs.size")

    def references(self) -> list[Reference]:
        spec, namespace = self.spec, self.metadata.namespace
        found = []
        if spec.nodeName:
            found.append(Reference("nodes", "", spec.nodeName, "spec.nodeName"))
            for i, port in enumerate(spec.ports):
                found.append(Reference("nodes", "", spec.nodeName, f"spec.ports[{i}]", part=port.called))
        for i, mount in enumerate(spec.volumeMounts):
            path = f"spec.volumeMounts[{i}]"
            if mount.pv is not None:
                target = "persistentvolumes.orch.ks-tool.dev"
                found.append(Reference(target, "", mount.pv, f"{path}.pv", holds=True))
            if mount.secret:
                found.append(Reference("secrets", namespace, mount.secret.name, f"{path}.secret.name"))
            if mount.configMap:
                found.append(Reference("configmaps", namespace, mount.configMap.name, f"{path}.configMap.name"))
        for i, var in enumerate(spec.env if isinstance(spec.env, list) else ()):
            path, source = f"spec.env[{i}].valueFrom", var.valueFrom
            if source and source.secretKeyRef:
                found.append(Reference("secrets", namespace, source.secretKeyRef.name, f"{path}.secretKeyRef.name"))
            if source and source.configMapKeyRef:
                name = source.configMapKeyRef.name
                found.append(Reference("configmaps", namespace, name, f"{path}.configMapKeyRef.name"))
        for i, secret in enumerate(spec.imagePullSecrets):
            found.append(Reference("secrets", namespace, secret.name, f"spec.imagePullSecrets[{i}].name"))
        return found

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation not in (Operation.CREATE, Operation.UPDATE) or self.metadata.deletionTimestamp:
            return
        old = request.old
        before = old["spec"].get("nodeName", "") if old else ""
        if before and before != self.spec.nodeName:
            meta = self.metadata
            request.store(node_removal(before, self.resource.kind, meta.namespace, meta.name, meta.uid))
        if self.spec.nodeName and (old is None or self._claims() != type(self).model_validate(old)._claims()):
            self._place(request)

    def _claims(self) -> tuple[Any, ...]:
        """What other applications of the node could be in the way of."""
        spec = self.spec
        return spec.nodeName, spec.ports, spec.resources, [m.pv for m in spec.volumeMounts]

    def _place(self, request: AdmissionRequest) -> None:
        view, node_name = request.view, self.spec.nodeName
        node = view.get("nodes", "", node_name)
        if node and node.get("spec", {}).get("unschedulable"):
            request.warn(f'node "{node_name}" is cordoned; the application is placed there because it names it')
        others = self._neighbours(view, node)
        volumes = {
            name: volume
            for name in {m.pv for m in self.spec.volumeMounts if m.pv}
            if (volume := view.get("persistentvolumes.orch.ks-tool.dev", "", name))
        }
        users = {name: list(view.referrers("persistentvolumes.orch.ks-tool.dev", "", name)) for name in volumes}
        if not (node or others or volumes):
            return
        me = {"metadata": {"namespace": self.metadata.namespace, "name": self.metadata.name}, "spec": self._placed()}
        found = conflicts(me, others, node, volumes, users)
        if found:
            causes = [Cause("FieldValueInvalid", c.message, c.field) for c in found]
            raise invalid(self.resource.group, self.resource.kind, self.metadata.name, causes)

    def _neighbours(self, view: ReadView, node: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Applications of the node that could be in the way: all where its capacity is known, since they add up, else
        those that want one of the same ports."""
        if node and node.get("status", {}).get("allocatable"):
            found = view.referrers("nodes", "", self.spec.nodeName)
        else:
            found = [o for p in self.spec.ports for o in view.referrers("nodes", "", self.spec.nodeName, p.called)]
        return [o for o in found if o["kind"] == self.resource.kind]

    def _placed(self) -> dict[str, Any]:
        """What placement looks at."""
        return self.spec.model_dump(include={"nodeName", "ports", "resources", "volumeMounts"}, exclude_none=True)

    def deleted(self, request: AdmissionRequest) -> None:
        meta = self.metadata
        if NODE_FINALIZER in meta.finalizers and self.spec.nodeName:
            request.store(node_removal(self.spec.nodeName, self.resource.kind, meta.namespace, meta.name, meta.uid))

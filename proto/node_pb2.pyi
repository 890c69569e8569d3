from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    PROCEED: _ClassVar[Verdict]
    PAUSE: _ClassVar[Verdict]
    ACCEPT: _ClassVar[Verdict]
    DUPLICATE: _ClassVar[Verdict]
    ADOPTION: _ClassVar[Verdict]
VERDICT_UNSPECIFIED: Verdict
PROCEED: Verdict
PAUSE: Verdict
ACCEPT: Verdict
DUPLICATE: Verdict
ADOPTION: Verdict

class AgentMessage(_message.Message):
    __slots__ = ("hello", "status", "acknowledgement", "node", "event", "heartbeat", "bye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    status: StatusReport
    acknowledgement: Acknowledgement
    node: NodeReport
    event: EventReport
    heartbeat: Heartbeat
    bye: Bye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., status: _Optional[_Union[StatusReport, _Mapping]] = ..., acknowledgement: _Optional[_Union[Acknowledgement, _Mapping]] = ..., node: _Optional[_Union[NodeReport, _Mapping]] = ..., event: _Optional[_Union[EventReport, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ...) -> None: ...

class ControllerMessage(_message.Message):
    __slots__ = ("welcome", "desired", "open_stream", "heartbeat", "bye")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    OPEN_STREAM_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    desired: DesiredState
    open_stream: OpenStream
    heartbeat: Heartbeat
    bye: Bye
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., desired: _Optional[_Union[DesiredState, _Mapping]] = ..., open_stream: _Optional[_Union[OpenStream, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("agent_version", "machine_id", "boot_id", "lineage", "revision", "digest", "paused", "node_json")
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    MACHINE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    NODE_JSON_FIELD_NUMBER: _ClassVar[int]
    agent_version: str
    machine_id: str
    boot_id: str
    lineage: str
    revision: int
    digest: str
    paused: bool
    node_json: bytes
    def __init__(self, agent_version: _Optional[str] = ..., machine_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., lineage: _Optional[str] = ..., revision: _Optional[int] = ..., digest: _Optional[str] = ..., paused: _Optional[bool] = ..., node_json: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("session_id", "lineage", "revision", "verdict", "reason", "server_time_ms", "heartbeat_ms")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    lineage: str
    revision: int
    verdict: Verdict
    reason: str
    server_time_ms: int
    heartbeat_ms: int
    def __init__(self, session_id: _Optional[str] = ..., lineage: _Optional[str] = ..., revision: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., reason: _Optional[str] = ..., server_time_ms: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ...) -> None: ...

class DesiredState(_message.Message):
    __slots__ = ("lineage", "revision", "digest", "body_json", "preview")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BODY_JSON_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    lineage: str
    revision: int
    digest: str
    body_json: bytes
    preview: bool
    def __init__(self, lineage: _Optional[str] = ..., revision: _Optional[int] = ..., digest: _Optional[str] = ..., body_json: _Optional[bytes] = ..., preview: _Optional[bool] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("lineage", "revision", "digest", "removed", "preview")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    lineage: str
    revision: int
    digest: str
    removed: _containers.RepeatedScalarFieldContainer[str]
    preview: str
    def __init__(self, lineage: _Optional[str] = ..., revision: _Optional[int] = ..., digest: _Optional[str] = ..., removed: _Optional[_Iterable[str]] = ..., preview: _Optional[str] = ...) -> None: ...

class StatusReport(_message.Message):
    __slots__ = ("snapshot", "applications")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    APPLICATIONS_FIELD_NUMBER: _ClassVar[int]
    snapshot: bool
    applications: _containers.RepeatedCompositeFieldContainer[ApplicationReport]
    def __init__(self, snapshot: _Optional[bool] = ..., applications: _Optional[_Iterable[_Union[ApplicationReport, _Mapping]]] = ...) -> None: ...

class ApplicationReport(_message.Message):
    __slots__ = ("namespace", "name", "uid", "generation", "invocation_id", "status_json", "orphaned")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_JSON_FIELD_NUMBER: _ClassVar[int]
    ORPHANED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    generation: int
    invocation_id: str
    status_json: bytes
    orphaned: bool
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ..., generation: _Optional[int] = ..., invocation_id: _Optional[str] = ..., status_json: _Optional[bytes] = ..., orphaned: _Optional[bool] = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("node_json", "volumes_json")
    NODE_JSON_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_JSON_FIELD_NUMBER: _ClassVar[int]
    node_json: bytes
    volumes_json: bytes
    def __init__(self, node_json: _Optional[bytes] = ..., volumes_json: _Optional[bytes] = ...) -> None: ...

class EventReport(_message.Message):
    __slots__ = ("namespace", "name", "uid", "type", "reason", "message")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    type: str
    reason: str
    message: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ..., type: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class OpenStream(_message.Message):
    __slots__ = ("stream_id", "kind", "request_json")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    kind: str
    request_json: bytes
    def __init__(self, stream_id: _Optional[str] = ..., kind: _Optional[str] = ..., request_json: _Optional[bytes] = ...) -> None: ...

class StreamMessage(_message.Message):
    __slots__ = ("stream_id", "data", "error", "end")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    data: bytes
    error: StreamError
    end: bool
    def __init__(self, stream_id: _Optional[str] = ..., data: _Optional[bytes] = ..., error: _Optional[_Union[StreamError, _Mapping]] = ..., end: _Optional[bool] = ...) -> None: ...

class StreamError(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

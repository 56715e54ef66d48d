from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kad(_message.Message):
    __slots__ = ("type", "key", "record", "closer_peers", "provider_peers")
    class Record(_message.Message):
        __slots__ = ("key", "value", "time_received")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        TIME_RECEIVED_FIELD_NUMBER: _ClassVar[int]
        key: bytes
        value: bytes
        time_received: bytes
        def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., time_received: _Optional[bytes] = ...) -> None: ...
    class Peer(_message.Message):
        __slots__ = ("id", "addresses")
        ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESSES_FIELD_NUMBER: _ClassVar[int]
        id: bytes
        addresses: _containers.RepeatedScalarFieldContainer[bytes]
        def __init__(self, id: _Optional[bytes] = ..., addresses: _Optional[_Iterable[bytes]] = ...) -> None: ...
    TYPE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    CLOSER_PEERS_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_PEERS_FIELD_NUMBER: _ClassVar[int]
    type: int
    key: bytes
    record: Kad.Record
    closer_peers: _containers.RepeatedCompositeFieldContainer[Kad.Peer]
    provider_peers: _containers.RepeatedCompositeFieldContainer[Kad.Peer]
    def __init__(self, type: _Optional[int] = ..., key: _Optional[bytes] = ..., record: _Optional[_Union[Kad.Record, _Mapping[str, object]]] = ..., closer_peers: _Optional[_Iterable[_Union[Kad.Peer, _Mapping[str, object]]]] = ..., provider_peers: _Optional[_Iterable[_Union[Kad.Peer, _Mapping[str, object]]]] = ...) -> None: ...

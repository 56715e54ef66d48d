from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AutonatMessage(_message.Message):
    __slots__ = ("type", "dial", "dial_response")
    class PeerInfo(_message.Message):
        __slots__ = ("id", "addrs")
        ID_FIELD_NUMBER: _ClassVar[int]
        ADDRS_FIELD_NUMBER: _ClassVar[int]
        id: bytes
        addrs: _containers.RepeatedScalarFieldContainer[bytes]
        def __init__(self, id: _Optional[bytes] = ..., addrs: _Optional[_Iterable[bytes]] = ...) -> None: ...
    class Dial(_message.Message):
        __slots__ = ("peer",)
        PEER_FIELD_NUMBER: _ClassVar[int]
        peer: AutonatMessage.PeerInfo
        def __init__(self, peer: _Optional[_Union[AutonatMessage.PeerInfo, _Mapping[str, object]]] = ...) -> None: ...
    class DialResponse(_message.Message):
        __slots__ = ("status", "status_text", "addr")
        STATUS_FIELD_NUMBER: _ClassVar[int]
        STATUS_TEXT_FIELD_NUMBER: _ClassVar[int]
        ADDR_FIELD_NUMBER: _ClassVar[int]
        status: int
        status_text: bytes
        addr: bytes
        def __init__(self, status: _Optional[int] = ..., status_text: _Optional[bytes] = ..., addr: _Optional[bytes] = ...) -> None: ...
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DIAL_FIELD_NUMBER: _ClassVar[int]
    DIAL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    type: int
    dial: AutonatMessage.Dial
    dial_response: AutonatMessage.DialResponse
    def __init__(self, type: _Optional[int] = ..., dial: _Optional[_Union[AutonatMessage.Dial, _Mapping[str, object]]] = ..., dial_response: _Optional[_Union[AutonatMessage.DialResponse, _Mapping[str, object]]] = ...) -> None: ...

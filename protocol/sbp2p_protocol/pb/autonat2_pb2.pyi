from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AutonatTwoMessage(_message.Message):
    __slots__ = ("dial_request", "dial_response", "dial_data_request", "dial_data_response")
    class DialRequest(_message.Message):
        __slots__ = ("addrs", "nonce")
        ADDRS_FIELD_NUMBER: _ClassVar[int]
        NONCE_FIELD_NUMBER: _ClassVar[int]
        addrs: _containers.RepeatedScalarFieldContainer[bytes]
        nonce: int
        def __init__(self, addrs: _Optional[_Iterable[bytes]] = ..., nonce: _Optional[int] = ...) -> None: ...
    class DialResponse(_message.Message):
        __slots__ = ("status", "addr_idx", "dial_status")
        STATUS_FIELD_NUMBER: _ClassVar[int]
        ADDR_IDX_FIELD_NUMBER: _ClassVar[int]
        DIAL_STATUS_FIELD_NUMBER: _ClassVar[int]
        status: int
        addr_idx: int
        dial_status: int
        def __init__(self, status: _Optional[int] = ..., addr_idx: _Optional[int] = ..., dial_status: _Optional[int] = ...) -> None: ...
    class DialDataRequest(_message.Message):
        __slots__ = ("addr_idx", "num_bytes")
        ADDR_IDX_FIELD_NUMBER: _ClassVar[int]
        NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
        addr_idx: int
        num_bytes: int
        def __init__(self, addr_idx: _Optional[int] = ..., num_bytes: _Optional[int] = ...) -> None: ...
    class DialDataResponse(_message.Message):
        __slots__ = ("data",)
        DATA_FIELD_NUMBER: _ClassVar[int]
        data: bytes
        def __init__(self, data: _Optional[bytes] = ...) -> None: ...
    DIAL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    DIAL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    DIAL_DATA_REQUEST_FIELD_NUMBER: _ClassVar[int]
    DIAL_DATA_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    dial_request: AutonatTwoMessage.DialRequest
    dial_response: AutonatTwoMessage.DialResponse
    dial_data_request: AutonatTwoMessage.DialDataRequest
    dial_data_response: AutonatTwoMessage.DialDataResponse
    def __init__(self, dial_request: _Optional[_Union[AutonatTwoMessage.DialRequest, _Mapping[str, object]]] = ..., dial_response: _Optional[_Union[AutonatTwoMessage.DialResponse, _Mapping[str, object]]] = ..., dial_data_request: _Optional[_Union[AutonatTwoMessage.DialDataRequest, _Mapping[str, object]]] = ..., dial_data_response: _Optional[_Union[AutonatTwoMessage.DialDataResponse, _Mapping[str, object]]] = ...) -> None: ...

class AutonatTwoDialBack(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class AutonatTwoDialBackResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: int
    def __init__(self, status: _Optional[int] = ...) -> None: ...

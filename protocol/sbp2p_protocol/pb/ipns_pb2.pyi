from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class IpnsEntry(_message.Message):
    __slots__ = ("value", "signature_v1", "validity_type", "validity", "sequence", "ttl", "pub_key", "signature_v2", "data")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_V1_FIELD_NUMBER: _ClassVar[int]
    VALIDITY_TYPE_FIELD_NUMBER: _ClassVar[int]
    VALIDITY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    PUB_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_V2_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    signature_v1: bytes
    validity_type: int
    validity: bytes
    sequence: int
    ttl: int
    pub_key: bytes
    signature_v2: bytes
    data: bytes
    def __init__(self, value: _Optional[bytes] = ..., signature_v1: _Optional[bytes] = ..., validity_type: _Optional[int] = ..., validity: _Optional[bytes] = ..., sequence: _Optional[int] = ..., ttl: _Optional[int] = ..., pub_key: _Optional[bytes] = ..., signature_v2: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

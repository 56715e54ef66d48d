from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeyType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RSA: _ClassVar[KeyType]
    ED25519: _ClassVar[KeyType]
    SECP256K1: _ClassVar[KeyType]
    ECDSA: _ClassVar[KeyType]
RSA: KeyType
ED25519: KeyType
SECP256K1: KeyType
ECDSA: KeyType

class PublicKey(_message.Message):
    __slots__ = ("type", "data")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    type: KeyType
    data: bytes
    def __init__(self, type: _Optional[_Union[KeyType, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PrivateKey(_message.Message):
    __slots__ = ("type", "data")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    type: KeyType
    data: bytes
    def __init__(self, type: _Optional[_Union[KeyType, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Identify(_message.Message):
    __slots__ = ("public_key", "listen_addresses", "protocols", "observed_address", "protocol_version", "agent_version", "signed_peer_record")
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    LISTEN_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNED_PEER_RECORD_FIELD_NUMBER: _ClassVar[int]
    public_key: bytes
    listen_addresses: _containers.RepeatedScalarFieldContainer[bytes]
    protocols: _containers.RepeatedScalarFieldContainer[bytes]
    observed_address: bytes
    protocol_version: bytes
    agent_version: bytes
    signed_peer_record: bytes
    def __init__(self, public_key: _Optional[bytes] = ..., listen_addresses: _Optional[_Iterable[bytes]] = ..., protocols: _Optional[_Iterable[bytes]] = ..., observed_address: _Optional[bytes] = ..., protocol_version: _Optional[bytes] = ..., agent_version: _Optional[bytes] = ..., signed_peer_record: _Optional[bytes] = ...) -> None: ...

"""Generated protobuf modules of the keys layer; `scripts/generate_protobuf.sh` makes them."""

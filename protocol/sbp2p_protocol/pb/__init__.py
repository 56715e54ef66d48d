"""Generated protobuf modules; scripts/generate_protobuf.sh makes them."""

"""A small language model learned by nodes that talk once in a hundred steps (DiLoCo)."""

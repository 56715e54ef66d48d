"""Smaller updates: what one model's tensors become on their way to the others.

`codec` finds codecs by name and decodes what a peer published; `packed` is what the built-in ones
share; `lossless`, `casts`, `blockwise` and `topk` are those. Importing this package, or `codec`,
imports no torch.
"""

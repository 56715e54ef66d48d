"""Checkpoints on disk: what files they hold, how they are cut, hashed, checked and loaded.

publish: `scan` lists the files, `formats` finds their tensors, `hashing` hashes their blocks in
threads, `publish` builds the tree, the block table and the tensor index from that.
receive: `select` turns globs into wanted blocks, `verify` rehashes files, `load` gives tensors.

Everything here is synchronous and imports neither trio nor torch; a node calls it from a worker
thread. Nothing here executes, unpickles or decompresses what a file contains.
"""

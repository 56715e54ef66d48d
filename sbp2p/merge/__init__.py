"""Merging models: exact, the same on every peer, and a tensor at a time.

`tensors` says what is merged and where it comes from and goes, `method` what a merge method is and
how it is found, `engine` runs a method over models of any size in bounded memory. Importing this
package imports no torch; the modules that compute do.
"""

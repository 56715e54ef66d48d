"""Callbacks for trainers that others wrote, each in the module that is named like its package.

`lightning` has `Sbp2pCallback`, `transformers` has `Sbp2pTrainerCallback`; `steps` is what both do,
and `ranks` what they do when a trainer runs as several processes.
"""

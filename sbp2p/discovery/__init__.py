"""Finding peers, and being found.

| module | what |
|---|---|
| `remembered` | peers that worked last time, on disk |
"""

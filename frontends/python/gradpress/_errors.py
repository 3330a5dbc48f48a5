"""The exceptions of the package that are not Python's own."""
from __future__ import annotations


class PeerLost(RuntimeError):
    """A rank is gone or did not answer. The message names it. Restart the job from its last checkpoint."""

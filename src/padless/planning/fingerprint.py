"""One name for lengths and one for a plan: equal names mean equal content."""

import hashlib
import json

import numpy as np

from padless.planning.spec import PlanSpec

# Raised whenever a strategy, the shuffle or the deal changes what any (lengths, spec) gives.
ALGORITHMS = 1
_CHUNK = 1 << 20


def lengths_digest(lengths: np.ndarray) -> str:
    """A digest of the values, whatever their dtype: 32 hex digits."""
    hashed = hashlib.blake2b(digest_size=16)
    narrow = int(lengths.max()) < 1 << 32 if lengths.size else True
    hashed.update(f"{lengths.size} {'u4' if narrow else 'i8'} ".encode())
    for start in range(0, lengths.size, _CHUNK):
        part = lengths[start : start + _CHUNK]
        hashed.update(part.astype("<u4" if narrow else "<i8").data)
    return hashed.hexdigest()


def plan_fingerprint(lengths: np.ndarray, spec: PlanSpec) -> str:
    """The fingerprint of the plan that `spec` makes of `lengths`: 32 hex digits."""
    text = json.dumps([ALGORITHMS, lengths_digest(lengths), spec.to_dict()], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

"""Plans beside the tokens they were made for."""

from pathlib import Path

from padless.corpus.durable import atomic_path, sha256_of
from padless.corpus.manifest import PlanEntry
from padless.planning import Plan

__all__ = ["plan_name", "save_plan"]


def plan_name(capacity: int) -> str:
    """File name of the plan for `capacity`."""
    return f"plan-{capacity}.npz"


def save_plan(folder: Path, plan: Plan) -> PlanEntry:
    """Write a plan into a store's folder, atomically, and describe the file."""
    path = folder / plan_name(plan.capacity)
    with atomic_path(path) as scratch:
        plan.save(scratch)
    return PlanEntry(
        name=path.name,
        bytes=path.stat().st_size,
        sha256=sha256_of(path),
        capacity=plan.capacity,
        fingerprint=plan.fingerprint,
    )

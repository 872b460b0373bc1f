"""Plans beside the tokens they were made for."""

from pathlib import Path

from padless.corpus.manifest import PlanEntry
from padless.durable import sha256_of
from padless.planning import Plan

__all__ = ["plan_name", "save_plan"]


def plan_name(capacity: int) -> str:
    """File name of the plan for `capacity`."""
    return f"plan-{capacity}.npz"


def save_plan(folder: Path, plan: Plan) -> PlanEntry:
    """Write a plan into a store's folder, atomically, and describe the file."""
    path = folder / plan_name(plan.capacity)
    plan.save(path)
    return PlanEntry(
        name=path.name,
        bytes=path.stat().st_size,
        sha256=sha256_of(path),
        capacity=plan.capacity,
        fingerprint=plan.fingerprint,
        pruning=plan.pruning,
    )

"""Every planted fault is found and named; its right twin passes, in three dtypes.

`benchmarks/audit_sweep.py` runs the same suite over 20 seeds.
"""

import pytest
import torch

from .faults import FAULTS

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_named(name: str, dtype: torch.dtype) -> None:
    fault = FAULTS[name]
    report = fault.report(seed=DTYPES.index(dtype), dtype=dtype)
    found = report[fault.check]
    assert (found.verdict, found.mechanism) == ("violated", fault.mechanism), found.finding
    assert report.exit_code == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FAULTS)
def test_its_right_twin_passes(name: str, dtype: torch.dtype) -> None:
    report = FAULTS[name].report(seed=DTYPES.index(dtype), dtype=dtype, twin=True)
    assert [(r.name, r.verdict, r.finding) for r in report if r.verdict != "proven"] == []

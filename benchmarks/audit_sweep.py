"""The planted faults over many seeds and dtypes: misses and false alarms of the audit.

    python benchmarks/audit_sweep.py [--seeds 2] [--dtypes float32,float64,bfloat16]

One line per fault; the last line is the sum. Twenty seeds (`--seeds 20`) are 3,240 audits.
"""

import argparse
import importlib
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
FAULTS = importlib.import_module("auditing.faults").FAULTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="faults; all when none is given")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--dtypes", default="float32,float64,bfloat16")
    options = parser.parse_args()
    dtypes = [getattr(torch, name) for name in options.dtypes.split(",")]
    began = time.perf_counter()
    audits = misses = alarms = 0
    print(f"{'fault':52} {'missed':>8} {'false alarms':>13}   of")
    for name in options.names or FAULTS:
        fault = FAULTS[name]
        missed, wrong, count = 0, 0, 0
        for dtype in dtypes:
            for seed in range(options.seeds):
                missed += fault.report(seed, dtype)[fault.check].mechanism != fault.mechanism
                twin = fault.report(seed, dtype, twin=True)
                wrong += any(result.verdict != "proven" for result in twin)
                count += 1
        print(f"{name:52} {missed:8} {wrong:13}   {count}", flush=True)
        audits, misses, alarms = audits + 2 * count, misses + missed, alarms + wrong
    seconds = time.perf_counter() - began
    print(f"\n{audits} audits, {misses} misses, {alarms} false alarms, {1000 * seconds / audits:.0f} ms each")


if __name__ == "__main__":
    main()

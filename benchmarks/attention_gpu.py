"""Packed attention on a GPU: every varlen kernel that is installed, the plain library call, the padded batch.

    python benchmarks/attention_gpu.py [--tokens 65536] [--heads 16] [--size 128] [--layers 32] [--repeats 5]

Forward and backward in bfloat16, causal, medians, the ways taking turns. One measurement is `--layers` calls that
share their boundaries, as the layers of a model do, and one synchronisation. TFLOP/s count real pairs only: a way that
computes padding, or pairs of other samples, gets no credit for it. "plain" calls `torch.nn.attention.varlen` with
offsets that are already on the device; what `padless` takes beyond it is this library's overhead.
"""

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from padless.attention import Segments, choose, varlen_attention
from padless.attention.backends import BACKENDS
from padless.measure.attention import lengths_of
from padless.measure.timing import interleaved

CASES = ("about 128", "log-normal", "about 1024", "about 8192")
MASKED_UP_TO = 16384  # tokens of a row for which a mask over the row is tried
Way = Callable[[], object]


def ways(lengths: list[int], heads: int, size: int, layers: int) -> dict[str, Way]:
    """Every way that can run here, by name."""
    segments = Segments.of(np.concatenate([[0], np.cumsum(lengths)]))
    make = partial(torch.randn, dtype=torch.bfloat16, device="cuda")
    row = [make(segments.q_slots, heads, size).requires_grad_(i < 3) for i in range(4)]

    def several(attend: Callable[..., torch.Tensor], tensors: list[torch.Tensor]) -> Way:
        q, k, v, up = tensors

        def run() -> None:
            for _ in range(layers):
                torch.autograd.grad(attend(q, k, v), (q, k, v), up)

        return run

    found = {
        "plain": several(_plain(segments), row),
        "padless": several(partial(varlen_attention, batch=segments), row),
    }
    for name in choose(*row[:3], segments).microseconds:
        too_large = name in ("dense", "segmented", "flex", "reference") and segments.q_slots > MASKED_UP_TO
        if name != "reference" and not too_large:
            found[name] = several(partial(varlen_attention, batch=segments, backend=name), row)
    longest, n = max(lengths), len(lengths)
    if longest * n <= 8 * segments.q_slots:  # else the padded batch takes minutes and gigabytes to say what is clear
        padded = [make(n, heads, longest, size).requires_grad_(i < 3) for i in range(4)]
        found["padded"] = several(partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True), padded)
    return found


def _plain(segments: Segments) -> Callable[..., torch.Tensor]:
    from torch.nn.attention.varlen import varlen_attn

    cu, longest = segments.cu_seqlens("q", torch.device("cuda")), segments.max_q
    return lambda q, k, v: varlen_attn(q, k, v, cu, cu, longest, longest, window_size=(-1, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("tokens", 65536), ("heads", 16), ("size", 128), ("layers", 32), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device; none here")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {chosen.tokens:,} tokens, {chosen.heads} heads of "
        f"{chosen.size}; backends: {', '.join(name for name, b in BACKENDS.items() if not b.missing())}"
    )
    print(f"{'segments':12}{'way':20}{'ms a layer':>12}{'TFLOP/s':>10}{'over plain':>12}{'spread':>8}")
    for case in CASES:
        lengths = lengths_of(case, chosen.tokens)
        made = ways(lengths, chosen.heads, chosen.size, chosen.layers)
        for way in made.values():
            way()
        timed = interleaved(made, repeats=chosen.repeats, synchronize=torch.cuda.synchronize)
        pairs = float((np.array(lengths, float) ** 2).sum()) / 2
        flop = 4 * chosen.heads * chosen.size * pairs * 3.5  # two products forward, five backward
        plain = timed["plain"].median
        for name, timing in timed.items():
            seconds = timing.median / chosen.layers
            rate, over = flop / seconds / 1e12, timing.median / plain - 1
            print(f"{case:12}{name:20}{seconds * 1e3:12.3f}{rate:10.1f}{over:12.1%}{timing.spread:8.0%}", flush=True)


if __name__ == "__main__":
    main()

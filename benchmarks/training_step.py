"""One training step of a llama on packed rows: padless against what Transformers offers on a CPU.

    python benchmarks/training_step.py [--repeats 3]

A llama of 7 million parameters, float32, one row of 2,048 tokens of log-normal documents (mean 200), forward, loss and
backward. "packed mask" is Transformers' own way with sdpa: positions that restart, no cache, a dense mask. "padded" is
the same documents as one padded batch, "sorted" as padded batches of four documents of similar length. "leaking" is the
row without any isolation: the time of plain causal attention, and the wrong gradients.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from padless.frameworks.transformers import PackedCollator, prepare

VOCABULARY, TOKENS = 8000, 2048


def build() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=4, use_cache=False, **sizes))


def documents() -> list[list[int]]:
    rng = np.random.default_rng(0)
    lengths: list[int] = []
    while sum(lengths) < TOKENS:
        lengths.append(int(np.clip(rng.lognormal(np.log(200) - 0.5, 1.0), 8, TOKENS)))
    lengths[-1] -= sum(lengths) - TOKENS
    return [rng.integers(3, VOCABULARY, n).tolist() for n in lengths if n > 1]


def padded_call(texts: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def step(model: Any, calls: list[dict[str, Any]], targets: int) -> torch.Tensor:
    """Gradients of the mean over all targets, flattened."""
    model.zero_grad()
    for call in calls:
        model(**call, num_items_in_batch=targets).loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    texts = documents()
    targets = sum(len(text) - 1 for text in texts)
    shipped = build()
    model = copy.deepcopy(shipped)
    prepare(model)
    packed = PackedCollator()(texts)
    dense = {name: packed[name] for name in ("input_ids", "labels", "position_ids")}
    leaking = {name: packed[name] for name in ("input_ids", "labels")}
    by_length = sorted(texts, key=len)
    fours = [padded_call(by_length[at : at + 4]) for at in range(0, len(texts), 4)]
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "padless": lambda: step(model, [packed], targets),
        "packed mask": lambda: step(shipped, [dense], targets),
        "padded": lambda: step(shipped, [padded_call(texts)], targets),
        "padded, sorted": lambda: step(shipped, fours, targets),
        "leaking": lambda: step(shipped, [leaking], targets),
    }
    print(f"{len(texts)} documents, {sum(map(len, texts))} tokens, longest {max(map(len, texts))}\n")
    print("| threads | " + " | ".join(ways) + " |")
    print("|---" * (len(ways) + 1) + "|")
    gradients = {name: run() for name, run in ways.items()}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, run in ways.items():
                start = time.perf_counter()
                run()
                taken[name].append(1e3 * (time.perf_counter() - start))
        median = {name: statistics.median(values) for name, values in taken.items()}
        cells = [f"{value:.0f} ms ({value / median['padless']:.2f})" for value in median.values()]
        print(f"| {threads} | {' | '.join(cells)} |")
    true = gradients["padded"]
    apart = [f"{float((gradient - true).norm() / true.norm()):.0e}" for gradient in gradients.values()]
    print(f"| gradients off by | {' | '.join(apart)} |")


if __name__ == "__main__":
    main()

"""Prepacked prefill against padded prefill on GSM8K questions: time to the first token of a batch of prompts.

    python benchmarks/prefill.py [--prompts 64] [--repeats 5]

The tokenizer is a byte-level BPE trained on the questions, the model a random llama of 5 million parameters. Padded
prefill is Transformers' own: left padding, sdpa, one cache for the batch. "sorted" pads batches of 16 prompts of
similar length, which is the best that padding can do. Prepacked time includes handing back a cache per prompt.
"""

import argparse
import copy
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from padless.frameworks.transformers import prefill, prepare

DATA = Path(os.environ.get("PADLESS_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
VOCABULARY, SORTED_BATCH = 4096, 16


def questions(count: int) -> list[list[int]]:
    lines = (DATA / "text" / "gsm8k_train.jsonl").read_text().splitlines()
    texts = [json.loads(line)["question"] for line in lines]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=VOCABULARY, show_progress=False)
    return [encoding.ids for encoding in tokenizer.encode_batch(texts[:count])]


def build() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=4, **sizes)).eval()


def padded(model: Any, prompts: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    return out.logits[:, -1].argmax(-1)


def padded_sorted(model: Any, prompts: list[list[int]]) -> torch.Tensor:
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    tokens = torch.empty(len(prompts), dtype=torch.long)
    for start in range(0, len(order), SORTED_BATCH):
        batch = order[start : start + SORTED_BATCH]
        tokens[batch] = padded(model, [prompts[i] for i in batch])
    return tokens


def prepacked(model: Any, prompts: list[list[int]]) -> torch.Tensor:
    return torch.stack([each.logits.argmax() for each in prefill(model, prompts)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if not DATA.is_dir():
        raise SystemExit(f"no data at {DATA}; set PADLESS_TEST_DATA to a folder with text/gsm8k_train.jsonl")
    prompts = questions(arguments.prompts)
    shipped = build()
    model = copy.deepcopy(shipped)
    prepare(model)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "padded": lambda: padded(shipped, prompts),
        "padded, sorted": lambda: padded_sorted(shipped, prompts),
        "prepacked": lambda: prepacked(model, prompts),
    }
    same = float((ways["padded"]() == ways["prepacked"]()).float().mean())
    real, longest = sum(map(len, prompts)), max(map(len, prompts))
    print(
        f"{len(prompts)} prompts, {real} tokens, longest {longest}: {1 - real / (longest * len(prompts)):.0%} padding;"
    )
    print(f"first tokens agree: {same:.0%}\n")
    print("| threads | " + " | ".join(f"{name}, ms" for name in ways) + " | padded / prepacked | sorted / prepacked |")
    print("|" + "---|" * 6)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.repeats):
            for name, run in ways.items():
                start = time.perf_counter()
                run()
                taken[name].append(1e3 * (time.perf_counter() - start))
        median = {name: statistics.median(values) for name, values in taken.items()}
        ratios = [median[name] / median["prepacked"] for name in ("padded", "padded, sorted")]
        cells = [f"{median[name]:.0f}" for name in ways] + [f"{ratio:.2f}" for ratio in ratios]
        print(f"| {threads} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

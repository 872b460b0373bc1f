"""Which architectures of the installed Transformers keep packed segments apart: as shipped, and with padless.

Each cell is measured: a tiny random model, two segments of 7 and 9 tokens in one row, and all passed that
Transformers has for packed rows (restarting `position_ids`, `cu_seq_lens_*`, `max_length_*`, `seq_idx`). Then the
tokens of the first segment are changed. "isolated" means that not a bit of the second segment's logits moved and that
they are those of the segment alone.

    python benchmarks/architectures.py                              prints the table
    python benchmarks/architectures.py --write docs/transformers.md puts it between the marks in that file
"""

import argparse
import importlib.metadata
import logging
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from padless.errors import PadlessError
from padless.frameworks.tiny_models import ARCHITECTURES, VOCABULARY, tiny_model
from padless.frameworks.transformers import prepare

BEGIN, END = "<!-- architectures: begin -->", "<!-- architectures: end -->"
LENGTHS = (7, 9)
SHIPPED = ("eager", "sdpa", "flex_attention")
APART = 1e-4  # relative; flex runs in float32, and parts of models always do
EXPERTS = 1e-12  # moved by rounding: tokens per expert change with the other segment


def packed_call(tokens: torch.Tensor) -> dict[str, Any]:
    offsets = torch.tensor([0, LENGTHS[0], sum(LENGTHS)], dtype=torch.int32)
    return {
        "input_ids": tokens,
        "position_ids": torch.cat([torch.arange(n) for n in LENGTHS])[None],
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": max(LENGTHS),
        "max_length_k": max(LENGTHS),
        "seq_idx": torch.repeat_interleave(torch.arange(2, dtype=torch.int32), torch.tensor(LENGTHS))[None],
    }


def logits(model: Any, **call: Any) -> torch.Tensor:
    if model.config.is_encoder_decoder:
        call = {name: call[name] for name in ("input_ids", "use_cache") if name in call}
        call["decoder_input_ids"] = call["input_ids"]
    if type(model).__name__ == "RwkvForCausalLM" and not hasattr(model, "_padless_gate"):  # takes no positions at all
        call = {name: call[name] for name in ("input_ids", "use_cache") if name in call}
    with torch.no_grad():
        return model(**call).logits[0]


def verdict(model: Any, **extra: Any) -> str:
    """What happens to segment 2 when segment 1 changes."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, VOCABULARY, (1, sum(LENGTHS)), generator=generator)
    changed = tokens.clone()
    changed[:, : LENGTHS[0]] = (tokens[:, : LENGTHS[0]] + 1) % VOCABULARY
    try:
        before, after = (logits(model, **packed_call(ids), **extra)[LENGTHS[0] :] for ids in (tokens, changed))
        alone = logits(model, input_ids=tokens[:, LENGTHS[0] :], **extra)
    except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the table
        return f"raises {type(error).__name__}"
    experts = any("expert" in name for name, _ in model.named_modules())
    moved = float((after - before).abs().max() / before.abs().max())
    if moved > (EXPERTS if experts and before.dtype == torch.float64 else 1e-6 if experts else 0.0):
        return "**leaks**"
    return "isolated" if float((before - alone).norm() / alone.norm()) < APART else "**wrong**"


def as_shipped(name: str, attention: str, **extra: Any) -> str:
    flex = attention == "flex_attention"
    try:
        model = tiny_model(name, attention=attention, dtype=torch.float32 if flex else torch.float64)
    except (ValueError, ImportError):
        return "-"
    if model.config._attn_implementation != attention:
        return "-"
    torch.compiler.set_stance("force_eager" if flex else "default")  # compiling changes speed, not who sees whom
    try:
        return verdict(model, **extra)
    finally:
        torch.compiler.set_stance("default")


def with_padless(name: str) -> tuple[str, str]:
    """The cell, and how it was done."""
    model = tiny_model(name)
    try:
        report = prepare(model)
    except PadlessError as refusal:
        return f"refused, because {_reason(str(refusal))}", ""
    kinds = {type(module).__name__ for module in model.modules()}
    mixers = sorted(kind.removeprefix("Segmentwise") for kind in kinds if kind.startswith("Segmentwise"))
    attends = any("Attention" in kind for kind in kinds if not kind.startswith("Segmentwise"))
    how = ["packed kernel"] if attends and report.attention == "padless" else []
    return verdict(model), " + ".join(how + ([f"{', '.join(mixers)} by segment"] if mixers else []))


def _reason(message: str) -> str:
    """The part of a refusal that fits into a cell; the whole says what to do as well."""
    leak = re.search(r"first in (.*?);", message)
    if leak:
        return f"the probe found a leak in {leak[1]}"
    return re.sub(r".*cannot be packed: |,? (whose|which) .*", "", message)


def table(names: list[str]) -> str:
    lines = [
        "| architecture | as shipped, default call | eager | sdpa | flex | with padless | how |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        off = {"use_cache": False}
        default = as_shipped(name, tiny_model(name).config._attn_implementation)
        cells = [default, *(as_shipped(name, attention, **off) for attention in SHIPPED), *with_padless(name)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr)
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("transformers", "torch"))
    return "\n".join([*lines, "", f"Measured with {versions} on CPU."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures; all when none is given")
    parser.add_argument("--write", type=Path, help="a file with the marks to write the table between")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    made = table(arguments.names or list(ARCHITECTURES))
    if arguments.write is None:
        print(made)
        return
    before, rest = arguments.write.read_text().split(BEGIN)
    arguments.write.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()

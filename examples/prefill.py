"""Prepacked prefill: many short prompts in one pass without padding, then each goes on generating by itself.

    python examples/prefill.py

Any causal language model does; this one is tiny and random so that nothing has to be downloaded.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from padless.frameworks.transformers import prefill, prepare

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).eval()
print(prepare(model), "\n")

prompts = [[11, 12, 13, 14, 15, 16, 17], [21, 22], [31, 32, 33, 34]]
for prompt, ready in zip(prompts, prefill(model, prompts), strict=True):
    generated = model.generate(**ready.generation_inputs(), max_new_tokens=5, do_sample=False, pad_token_id=0)
    ids = torch.tensor([prompt])
    alone = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, pad_token_id=0)
    print(f"{len(prompt)} tokens -> {generated[0, len(prompt) :].tolist()}, as alone: {torch.equal(generated, alone)}")

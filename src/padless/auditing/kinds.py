"""What kind of layer a module is, from its type and its names: decides how a leak through it is called."""

import re

import torch

# First match wins, so the special ones stand first: "linear_attn" is a recurrence, not an attention.
_NAMES = (
    ("batch-norm", re.compile(r"batch_?norm", re.IGNORECASE)),
    ("convolution", re.compile(r"conv", re.IGNORECASE)),
    (
        "state",
        re.compile(
            r"mamba|ssm|scan|recurr|rwkv|retention|delta|linear_?att|rg_?lru|gru|lstm|state|mixer2?$", re.IGNORECASE
        ),
    ),
    ("experts", re.compile(r"moe|expert|router|sparse", re.IGNORECASE)),
    ("attention", re.compile(r"att", re.IGNORECASE)),
)


def kind_of_module(module: torch.nn.Module, name: str) -> str:
    """`batch-norm`, `convolution`, `state`, `experts`, `attention` or "" by a module's type and last name."""
    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        return "batch-norm"
    if isinstance(module, torch.nn.RNNBase):
        return "state"
    for text in (type(module).__name__, name):
        for kind, pattern in _NAMES:
            if pattern.search(text):
                return kind
    return ""


def kind_of(model: torch.nn.Module, name: str) -> str:
    """The kind of a module by its full name: its own, else that of the innermost module around it which has one."""
    modules = dict(model.named_modules())
    while name:
        kind = kind_of_module(modules[name], name.rpartition(".")[2])
        if kind:
            return kind
        name = name.rpartition(".")[0]
    return ""


def stateful_layers(model: torch.nn.Module) -> dict[str, int]:
    """How many layers of each kind can carry something over a boundary; nested ones count once."""
    found: dict[str, int] = {}
    inside: list[str] = []
    for name, module in model.named_modules():
        if not name or isinstance(module, torch.nn.ModuleList) or any(name.startswith(o + ".") for o in inside):
            continue
        kind = kind_of_module(module, name.rpartition(".")[2])
        if kind in ("batch-norm", "convolution", "state", "experts"):
            inside.append(name)
            found[kind] = found.get(kind, 0) + 1
    return found


def describe(model: torch.nn.Module, name: str) -> str:
    """`layers.0.attn (Attention)`."""
    module = dict(model.named_modules()).get(name)
    return name if module is None else f"{name or 'the model itself'} ({type(module).__name__})"

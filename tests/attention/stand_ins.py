"""Stand-ins for kernels that need a GPU: the same names and signatures, the same demands, computed by the reference.

They let the tests run a backend's whole call on a CPU. Each refuses what the real kernel refuses (dtypes, layouts,
offsets that are not int32) and knows the mask alignment that the real one documents, so a wrong argument shows as an
error or as a wrong number. What they cannot show is the real kernel's speed and rounding: that takes a GPU.

Contracts read from: flash-attn 2.8 `flash_attn_interface.py`, its `hopper/` (3) and `flash_attn/cute/` (4) folders at
commit 0251105 of 2026-08-15, PyTorch 2.13 `torch/nn/attention/varlen.py`, xformers 0.0.35, Transformer Engine 2.20.
"""

from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch

from padless.attention.backends import reference
from padless.attention.capability import HALF
from padless.attention.problem import Problem
from padless.attention.segments import Segments


def _attend(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, scale: Any, **options: Any) -> Any:
    """The reference behind the demands that all varlen kernels make."""
    for name, offsets in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        assert offsets.dtype == torch.int32, f"{name} must have dtype int32"
        assert offsets.is_contiguous(), f"{name} must be contiguous"
        assert offsets.device == q.device, f"{name} must be on the device of q"
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        assert tensor.ndim == 3, f"{name} must be [tokens, heads, size]"
        assert tensor.stride(-1) == 1, "input tensor must have contiguous last dimension"
    segments = Segments.of(cu_q, cu_k)
    assert segments.max_q <= max_q, "max_seqlen_q is below the longest sequence"
    assert segments.max_k <= max_k, "max_seqlen_k is below the longest sequence"
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return reference.run(Problem(q=q, k=k, v=v, segments=segments, scale=scale, **options))


def _flash(q: Any, k: Any, v: Any, *rest: Any, causal: bool, window: tuple[Any, Any], **options: Any) -> Any:
    """What the flash-attn family adds: half precision, one window convention, `[H, T]` log-sum-exp."""
    assert q.dtype in HALF, "FlashAttention only support fp16 and bf16 data type"
    assert q.dtype == k.dtype == v.dtype, "query, key and value must have the same dtype"
    assert q.shape[1] % k.shape[1] == 0, "Number of heads in key/value must divide number of heads in query"
    left, right = (None if limit is None or limit < 0 else limit for limit in window)
    out, lse = _attend(q, k, v, *rest, left=left, right=0 if causal else right, **options)
    return out, lse.float().T.contiguous()


def _as_varlen(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """`[n, length, heads, size]` as packed tokens, offsets and the length."""
    assert x.ndim == 4, "must be [batch, length, heads, size]"
    n, length = x.shape[:2]
    return x.flatten(0, 1), torch.arange(0, n * length + 1, length, dtype=torch.int32, device=x.device), length


def _fixed(q: Any, k: Any, v: Any, scale: Any, **options: Any) -> Any:
    (fq, cu_q, nq), (fk, cu_k, nk), (fv, _, _) = _as_varlen(q), _as_varlen(k), _as_varlen(v)
    out, lse = _flash(fq, fk, fv, cu_q, cu_k, nq, nk, scale, **options)
    return out.unflatten(0, q.shape[:2]), lse.unflatten(1, q.shape[:2]).transpose(0, 1)


def flash_attn_2() -> ModuleType:
    """Module `flash_attn`."""
    module = ModuleType("flash_attn")

    def flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
        block_table=None,
    ):
        assert alibi_slopes is None
        assert block_table is None
        assert isinstance(deterministic, bool)
        options = {"causal": causal, "window": window_size, "softcap": softcap, "dropout_p": dropout_p}
        found = _flash(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, **options)
        return (*found, None) if return_attn_probs else found[0]

    def flash_attn_func(
        q,
        k,
        v,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
    ):
        assert alibi_slopes is None
        assert isinstance(deterministic, bool)
        options = {"causal": causal, "window": window_size, "softcap": softcap, "dropout_p": dropout_p}
        found = _fixed(q, k, v, softmax_scale, **options)
        return (*found, None) if return_attn_probs else found[0]

    module.flash_attn_varlen_func, module.flash_attn_func = flash_attn_varlen_func, flash_attn_func
    module.__version__ = "2.8.3"
    return module


def flash_attn_3() -> ModuleType:
    """Module `flash_attn_interface`."""
    module = ModuleType("flash_attn_interface")

    def flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        seqused_q=None,
        seqused_k=None,
        softmax_scale=None,
        causal=False,
        qv=None,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        window_size=(-1, -1),
        attention_chunk=0,
        softcap=0.0,
        num_splits=1,
        pack_gqa=None,
        deterministic=False,
        sm_margin=0,
        return_attn_probs=False,
    ):
        assert seqused_q is None
        assert seqused_k is None
        assert qv is None
        assert attention_chunk == 0
        options = {"causal": causal, "window": window_size, "softcap": softcap}
        found = _flash(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, **options)
        return found if return_attn_probs else found[0]

    def flash_attn_func(
        q,
        k,
        v,
        softmax_scale=None,
        causal=False,
        qv=None,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        window_size=(-1, -1),
        attention_chunk=0,
        softcap=0.0,
        num_splits=1,
        pack_gqa=None,
        deterministic=False,
        sm_margin=0,
        return_attn_probs=False,
    ):
        found = _fixed(q, k, v, softmax_scale, causal=causal, window=window_size, softcap=softcap)
        return found if return_attn_probs else found[0]

    module.flash_attn_varlen_func, module.flash_attn_func = flash_attn_varlen_func, flash_attn_func
    module.__version__ = "3.0.0"
    return module


def flash_attn_4() -> ModuleType:
    """Module `flash_attn.cute`: None for no limit, keyword offsets, a learnable sink, always a pair."""
    module = ModuleType("flash_attn.cute")

    def flash_attn_varlen_func(
        q,
        k,
        v,
        qv=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        min_seqlen_k=None,
        seqused_q=None,
        seqused_k=None,
        gather_kv_indices=None,
        page_table=None,
        softmax_scale=None,
        causal=False,
        window_size=(None, None),
        learnable_sink=None,
        softcap=0.0,
        num_splits=1,
        pack_gqa=None,
        deterministic=False,
        score_mod=None,
        score_mod_bwd=None,
        mask_mod=None,
        block_sparse_tensors=None,
        aux_tensors=None,
        aux_scalars=None,
        return_lse=False,
        scheduler_metadata=None,
        seqlen_k_per_split=None,
        disable_scheduler_metadata=False,
    ):
        options = {"causal": causal, "window": window_size, "softcap": softcap, "sinks": learnable_sink}
        _check_4(q, v, window_size, learnable_sink)
        found = _flash(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, **options)
        return found if return_lse else (found[0], None)

    def flash_attn_func(
        q,
        k,
        v,
        qv=None,
        gather_kv_indices=None,
        softmax_scale=None,
        causal=False,
        window_size=(None, None),
        learnable_sink=None,
        softcap=0.0,
        num_splits=1,
        pack_gqa=None,
        deterministic=False,
        score_mod=None,
        score_mod_bwd=None,
        mask_mod=None,
        aux_tensors=None,
        aux_scalars=None,
        block_sparse_tensors=None,
        block_sparse_tensors_bwd=None,
        return_lse=False,
    ):
        _check_4(q, v, window_size, learnable_sink)
        options = {"causal": causal, "window": window_size, "softcap": softcap, "sinks": learnable_sink}
        found = _fixed(q, k, v, softmax_scale, **options)
        return found if return_lse else (found[0], None)

    module.flash_attn_varlen_func, module.flash_attn_func = flash_attn_varlen_func, flash_attn_func
    module.__version__ = "4.0.0"
    return module


def _check_4(q: Any, v: Any, window: Any, sink: Any) -> None:
    assert {q.shape[-1] % 8, v.shape[-1] % 8} == {0}, "head_dim must be a multiple of 16 bytes"
    assert all(limit is None or limit >= 0 for limit in window), "no limit is None, a negative one is a shifted band"
    assert sink is None or sink.dtype in (torch.bfloat16, torch.float16, torch.float32)


class AuxRequest(NamedTuple):
    """As in `torch.nn.attention.varlen`."""

    lse: bool = False


def torch_varlen(*, grouped: bool = True) -> ModuleType:
    """Module `torch.nn.attention.varlen`; not `grouped` is the signature of 2.11."""
    module = ModuleType("torch.nn.attention.varlen")

    def call(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, return_aux, scale, window_size):
        found = _flash(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, causal=False, window=window_size)
        return found if return_aux is not None and return_aux.lse else found[0]

    def varlen_attn(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        *,
        return_aux=None,
        scale=None,
        window_size=(-1, -1),
        enable_gqa=False,
        seqused_k=None,
        block_table=None,
        num_splits=None,
    ):
        if not enable_gqa and query.size(1) != key.size(1):
            raise ValueError("Expect query and key/value to have the same number of heads")
        return call(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, return_aux, scale, window_size)

    def varlen_attn_211(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        *,
        return_aux=None,
        scale=None,
        window_size=(-1, -1),
    ):
        assert query.size(1) == key.size(1)
        return call(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, return_aux, scale, window_size)

    module.varlen_attn = varlen_attn if grouped else varlen_attn_211
    module.AuxRequest = AuxRequest
    return module


class BlockDiagonalMask:
    """As in `xformers.ops.fmha.attn_bias`: without a mask, from the bottom right, and local."""

    def __init__(self, q_seqlen: list[int], kv_seqlen: list[int], right: int | None = None, left: int | None = None):
        self.q_seqlen, self.kv_seqlen, self.right, self.left = q_seqlen, kv_seqlen, right, left

    @classmethod
    def from_seqlens(
        cls, q_seqlen: list[int], kv_seqlen: list[int] | None = None, *, device: Any = None
    ) -> "BlockDiagonalMask":
        """The mask of these lengths."""
        assert device is not None
        assert all(isinstance(n, int) for n in q_seqlen)
        return cls(q_seqlen, q_seqlen if kv_seqlen is None else kv_seqlen)

    def make_causal_from_bottomright(self) -> "BlockDiagonalMask":
        """The same, causal."""
        for nq, nk in zip(self.q_seqlen, self.kv_seqlen, strict=True):
            if nk < nq:
                raise ValueError("Expected `num_keys >= num_queries`")
        return BlockDiagonalMask(self.q_seqlen, self.kv_seqlen, right=0)

    def make_local_attention_from_bottomright(self, window_size: int) -> "BlockDiagonalMask":
        """The same with `window_size` keys at most, the query's own among them."""
        assert window_size > 0
        assert self.right == 0
        return BlockDiagonalMask(self.q_seqlen, self.kv_seqlen, right=0, left=window_size - 1)


def xformers() -> dict[str, ModuleType]:
    """Modules `xformers`, `xformers.ops`, `xformers.ops.fmha` and `xformers.ops.fmha.attn_bias`."""

    def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None):
        assert query.ndim == 4
        assert query.shape[0] == 1, "packed sequences have batch size 1"
        assert query.shape[2] == key.shape[2], "no broadcast over heads"
        assert query.dtype in (*HALF, torch.float32)
        cu_q, cu_k = (
            torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            for lengths in (attn_bias.q_seqlen, attn_bias.kv_seqlen)
        )
        longest = max(attn_bias.q_seqlen, default=0), max(attn_bias.kv_seqlen, default=0)
        limits = {"left": attn_bias.left, "right": attn_bias.right}
        out, _ = _attend(query[0], key[0], value[0], cu_q, cu_k, *longest, scale, dropout_p=p, **limits)
        return out[None]

    names = ("xformers", "xformers._cpp_lib", "xformers.ops", "xformers.ops.fmha", "xformers.ops.fmha.attn_bias")
    modules = {name: ModuleType(name) for name in names}
    modules["xformers"].__version__ = "0.0.35"
    modules["xformers.ops"].memory_efficient_attention = memory_efficient_attention
    modules["xformers._cpp_lib"]._built_with_cuda = True
    modules["xformers.ops.fmha.attn_bias"].BlockDiagonalMask = BlockDiagonalMask
    for name in names[1:]:
        parent, _, child = name.rpartition(".")
        setattr(modules[parent], child, modules[name])
    return modules


class DotProductAttention(torch.nn.Module):
    """As in `transformer_engine.pytorch`, THD layout only."""

    def __init__(
        self,
        num_attention_heads,
        kv_channels,
        num_gqa_groups=None,
        attention_dropout=0.0,
        qkv_format="sbhd",
        attn_mask_type="causal",
        window_size=None,
        softmax_scale=None,
    ):
        super().__init__()
        self.made = SimpleNamespace(
            heads=num_attention_heads,
            sizes=kv_channels if isinstance(kv_channels, tuple) else (kv_channels, kv_channels),
            groups=num_gqa_groups,
            dropout=attention_dropout,
            scale=softmax_scale,
        )

    def forward(
        self,
        query_layer=None,
        key_layer=None,
        value_layer=None,
        attention_mask=None,
        qkv_format=None,
        cu_seqlens_q=None,
        cu_seqlens_kv=None,
        cu_seqlens_q_padded=None,
        cu_seqlens_kv_padded=None,
        max_seqlen_q=None,
        max_seqlen_kv=None,
        attn_mask_type=None,
        window_size=None,
    ):
        """`[T, heads * value size]`."""
        assert qkv_format == "thd", "this stand-in knows thd"
        assert attn_mask_type in ("padding", "padding_causal_bottom_right"), "thd needs a padding mask type"
        assert query_layer.shape[1:] == (self.made.heads, self.made.sizes[0])
        assert key_layer.shape[1] == self.made.groups
        assert value_layer.shape[2] == self.made.sizes[1]
        causal = attn_mask_type != "padding"
        assert not causal or window_size[1] in (0, -1), "a causal mask type has no window ahead"
        out, _ = _flash(
            query_layer,
            key_layer,
            value_layer,
            cu_seqlens_q,
            cu_seqlens_kv,
            max_seqlen_q,
            max_seqlen_kv,
            self.made.scale,
            causal=causal,
            window=window_size,
            dropout_p=self.made.dropout,
        )
        return out.flatten(1)


def transformer_engine() -> ModuleType:
    """Module `transformer_engine.pytorch`."""
    module = ModuleType("transformer_engine.pytorch")
    module.DotProductAttention = DotProductAttention
    return module


def modules(name: str) -> dict[str, ModuleType]:
    """Everything to put into `sys.modules` for one backend, by the backend's name."""
    made = {
        "flash-attn-2": flash_attn_2,
        "flash-attn-3": flash_attn_3,
        "flash-attn-4": flash_attn_4,
        "torch-varlen": torch_varlen,
        "transformer-engine": transformer_engine,
        "xformers": xformers,
    }[name]()
    if isinstance(made, dict):
        return made
    parents = {parent: ModuleType(parent) for parent in _parents(made.__name__) if not parent.startswith("torch")}
    return {**parents, made.__name__: made}


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]

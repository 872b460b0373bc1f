"""Every way of going wrong that the audit can name, with what it means and what to do.

A check that fails names exactly one of these codes; codes are stable, so a CI can wait for one.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mechanism:
    """One fault class: what is wrong, and how it is put right."""

    meaning: str
    remedy: str


_BOUNDARIES = (
    "Give the attention its boundaries (cu_seqlens, segment ids or a block mask); `attn_implementation='padless'` "
    "does it for Transformers models."
)

MECHANISMS: dict[str, Mechanism] = {
    # who sees whom
    "no-segment-mask": Mechanism("Segments read each other as if the row were one text.", _BOUNDARIES),
    "boundary-off-by-one": Mechanism(
        "A boundary lies one token beside its place.",
        "Check how cu_seqlens is made: it starts with 0 and entry i+1 is the end of segment i, exclusive.",
    ),
    "mask-disables-detection": Mechanism(
        "A 2-D attention mask is passed, and with one the model no longer looks for boundaries.",
        "Do not pass `attention_mask` with packed rows.",
    ),
    "cache-disables-detection": Mechanism(
        "The model makes a cache object, and with one it no longer looks for boundaries.",
        "Set `model.config.use_cache = False` or pass `use_cache=False`.",
    ),
    "segments-mix": Mechanism("Some segments change when others change.", _BOUNDARIES),
    # stateful layers
    "state-carried-over": Mechanism(
        "A recurrent layer (SSM, linear attention, RNN) carries its state over a boundary.",
        "Reset the state at boundaries (`seq_idx`, `cu_seqlens`), or run this layer segment by segment.",
    ),
    "missing-seq-idx": Mechanism(
        "The model resets its stateful layers only when `seq_idx` is given, and the collator does not give it.",
        "Let the collator emit `seq_idx` (int32, the segment number of every slot).",
    ),
    "convolution-crosses-boundary": Mechanism(
        "A convolution reads the last tokens of the segment before.",
        "Use a convolution that takes boundaries (`seq_idx`), or run it segment by segment.",
    ),
    "batch-statistics": Mechanism(
        "A layer normalises over the tokens of the whole batch, so that every sample depends on its company.",
        "Replace batch norm by a norm over features, or freeze its statistics.",
    ),
    "experts-mix": Mechanism(
        "Routing couples tokens of different segments (expert capacity, dropped tokens, batch-wide scores).",
        "Use dropless routing, or give every segment its own capacity.",
    ),
    "state-between-calls": Mechanism(
        "The model remembers something from one call to the next.",
        "Clear the state between batches.",
    ),
    # inside a segment
    "upper-left-mask": Mechanism(
        "Inside a packed segment the nearest keys are missing: the causal mask is aligned to the upper left, where "
        "queries and keys of different lengths need the lower right.",
        "Align the causal mask at the bottom right (`causal_lower_right`), as varlen kernels do.",
    ),
    "wrong-window": Mechanism(
        "The attention window of packed rows differs from that of samples alone.",
        "Pass the same window to the packed path; mind whether it counts the token itself.",
    ),
    "not-causal": Mechanism(
        "In packed rows a token sees later tokens of its own segment; alone it does not.",
        "Make the packed mask causal inside each segment.",
    ),
    "outputs-differ": Mechanism(
        "Packed samples compute something else than alone, though they see the same tokens.",
        "Compare the layer named here, packed and alone: positions, scaling and kernel options first.",
    ),
    "gradients-differ": Mechanism(
        "Logits and loss agree, parameter gradients do not.",
        "Look for a custom backward, or for a term of the loss that depends on the batch.",
    ),
    "loss-differs": Mechanism(
        "The packed loss is no combination of the samples' own losses, though their logits agree.",
        "See the checks of targets and of the denominator.",
    ),
    # positions
    "positions-not-reset": Mechanism(
        "Positions run on over the row, and this architecture depends on their absolute value.",
        "Restart positions in each segment, from where they start when the sample is alone.",
    ),
    "positions-wrong": Mechanism(
        "Positions inside a segment are not those of the sample alone.",
        "Compute positions per sample, then concatenate; never on the packed row.",
    ),
    "position-axes": Mechanism(
        "The model rotates by several position axes (M-RoPE) and gets fewer.",
        "Emit `position_ids` of shape [axes, batch, length]; Transformers' Qwen-VL wants 4, row 0 the text position.",
    ),
    # what is trained
    "cross-boundary-label": Mechanism(
        "The last token of one segment is trained to predict the first token of the next.",
        "Set the label of every segment's first token to -100, or shift labels per sample before packing.",
    ),
    "double-shift": Mechanism(
        "Every token is trained to predict the token after next: labels are shifted twice.",
        "Shift in one place: either the collator or the model.",
    ),
    "no-shift": Mechanism(
        "Every token is trained to predict itself: labels are never shifted.",
        "Shift in one place: either the collator or the model.",
    ),
    "lost-eod": Mechanism(
        "Samples' end-of-document token is not a target (or not even in the row), so the model never learns to stop.",
        "Mask padding by position, never by token id, and keep the last token when packing.",
    ),
    "padding-in-loss": Mechanism("Padded slots enter the loss.", "Give padded slots the label -100, by position."),
    "prompt-in-loss": Mechanism(
        "Tokens whose label was masked by the sample are trained.",
        "Carry the samples' labels through the collator.",
    ),
    "targets-lost": Mechanism(
        "Positions that should be trained are not.", "Carry the samples' labels through the collator."
    ),
    "wrong-targets": Mechanism(
        "Positions are trained on tokens that no shift explains.", "Build labels from the row's own tokens."
    ),
    "tokens-lost": Mechanism(
        "Tokens of a sample are not in the row.", "Count what is truncated; let over-length be an error."
    ),
    # how it is averaged
    "mean-of-means": Mechanism(
        "Each micro-batch (or rank) is averaged by its own number of targets and these means are averaged again, so "
        "tokens of short batches weigh more.",
        "Divide the sum of losses by the number of targets of the whole global batch.",
    ),
    "wrong-denominator": Mechanism(
        "The accumulated loss is neither that of one big batch nor a mean of means.",
        "Divide the sum of losses by the number of targets of the whole global batch, once.",
    ),
    # padding
    "attends-padding": Mechanism(
        "Real tokens see padded slots.", "Keep padding outside every segment: no cu_seqlens entry covers it."
    ),
    "aux-loss-counts-padding": Mechanism(
        "An auxiliary loss (MoE load balance, router z-loss) counts padded slots.",
        "Mask padded slots in the router's statistics.",
    ),
    "loss-counts-padding": Mechanism(
        "The loss depends on what padded slots hold.", "Leave padded slots out of the loss, by position."
    ),
    "padding-amount-matters": Mechanism(
        "Real outputs depend on how much padding there is.", "Take lengths from cu_seqlens, not from the row."
    ),
    # data and calls
    "store-broken": Mechanism(
        "The store is not what its manifest says.", "Restore it, or pack it again (`padless pack`)."
    ),
    "trap": Mechanism(
        "The call has a known trap in it, and isolation or parity fails.", "Remove the trap named here first."
    ),
}

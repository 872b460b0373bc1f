"""What each check means, for people who meet it for the first time."""

EXPLANATIONS: dict[str, str] = {
    "traps": (
        "Things that are known to break packed rows in silence: a 2-D attention mask or a cache object (both "
        "switch boundary detection off in Transformers), several rows without explicit boundaries, too few "
        "position axes, arguments that nobody reads. They are only seen, not proven to do harm; the checks "
        "below decide that."
    ),
    "isolation": (
        "All tokens of one segment are replaced, and the logits and hidden states of all others are compared "
        "before and after. Both passes have the same shapes, so what does not depend on the change is equal "
        "to the bit. Every ordered pair is tried, in evaluation and training mode, in the model's dtype and "
        "in float64 where a copy fits."
    ),
    "gradients": (
        "A random projection of one segment's logits is backpropagated to the embeddings of the row. Those of "
        "other segments must receive exactly zero."
    ),
    "positions": (
        "Each segment's positions must be those of the sample alone. If they are not, the audit shifts all "
        "positions of one sample by a constant: rotary models do not move, learned tables do."
    ),
    "targets": (
        "The gradient of the loss by the logits tells which positions are trained and on which token. It is "
        "compared with the samples' own labels: no label across a boundary, no double shift, no padding, "
        "prompts masked, EOD kept."
    ),
    "parity": (
        "Logits, loss and parameter gradients of the packed row against the samples alone. What rounding may "
        "explain is measured on this model: repetition, precision of its operators, and its response to small "
        "disturbances."
    ),
    "denominator": (
        "The same samples as one batch, over accumulation steps and over ranks with unequal numbers of "
        "targets. A mean of per-batch means weighs tokens of short batches more; the size of that error is "
        "shown."
    ),
    "padding": (
        "Padded slots are filled with random tokens, and their number is changed. Nothing real may move, "
        "auxiliary losses included."
    ),
    "state": (
        "The same row before and after a call with other tokens; and the layers through which something could "
        "pass (recurrent, convolutional, experts, batch norm)."
    ),
}

"""Does a model remember something from one call to the next?"""

from padless.auditing.context import Context
from padless.auditing.noise import REPETITION
from padless.auditing.subject import Subject


def carried_between_calls(context: Context, subject: Subject) -> tuple[float, float]:
    """How much the same row moves after a call with other tokens, and how much noise explains."""
    inputs = subject.collate(context.samples)
    layout = subject.layout(inputs, context.samples)
    other = subject.collate([context.perturbed(i, 5)[i] for i in range(len(context.samples))])
    context.see(subject, inputs, layout=layout)  # so that both calls below come after one with these tokens
    base = context.see(subject, inputs, layout=layout)
    noise = REPETITION * float((context.see(subject, inputs, layout=layout).logits - base.logits).abs().max())
    context.see(subject, other, layout=layout)
    return float((context.see(subject, inputs, layout=layout).logits - base.logits).abs().max()), noise

"""Compiled models do not compile anew from batch to batch, and memory grows with tokens, not with their square."""

import subprocess
import sys
import textwrap

import pytest
import torch

from padless.attention import Segments, varlen_attention

ROWS = [[0, 10, 64], [0, 3, 3, 30, 64], [0, 64], [0, *range(1, 65)], [0, 32, 64]]


# Dynamo looks at .grad of what comes out of a graph break, inside a filter that "error" goes through.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_other_boundaries_compile_nothing_anew():
    torch._dynamo.reset()
    compiled = []

    def count(graph, _inputs):
        compiled.append(graph)
        return graph

    project = torch.nn.Linear(8, 3 * 2 * 8)

    @torch.compile(backend=count, dynamic=False)
    def layer(x, segments):
        q, k, v = project(x).view(-1, 3, 2, 8).unbind(1)
        return torch.relu(varlen_attention(q, k, v, segments)).sum()

    counts = []
    for offsets in ROWS:
        x = torch.randn(64, 8, requires_grad=True)
        segments = Segments.of(offsets)
        loss = layer(x, segments)
        loss.backward()
        counts.append(len(compiled))
        q, k, v = project(x).view(-1, 3, 2, 8).unbind(1)
        want = torch.relu(varlen_attention(q, k, v, segments, backend="reference")).sum()
        torch.testing.assert_close(loss, want, atol=1e-4, rtol=1e-4)
    assert counts[0] > 0
    assert set(counts) == {counts[0]}
    torch._dynamo.reset()


@pytest.mark.slow
def test_memory_is_linear_in_tokens():
    """65,536 tokens in 1,024 segments: inputs, outputs, gradients and a few buffers, nothing of the row's square."""
    script = textwrap.dedent("""
        import torch
        from padless.attention import Segments, varlen_attention
        torch.set_num_threads(1)
        def peak():  # KiB since this program began; getrusage's would begin with the peak of the process that forked it
            return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
        def step(tokens):
            q, k, v = (torch.randn(tokens, 2, 64, requires_grad=True) for _ in range(3))
            varlen_attention(q, k, v, Segments.of(range(0, tokens + 1, 64)), backend="segmented").sum().backward()
        step(64)
        before = peak()
        step(65536)
        print(peak() - before)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    one_tensor = 65536 * 2 * 64 * 4 / 1024  # KiB; a mask over the row would be 4 GiB, its scores 32
    assert 0 < int(done.stdout) < 12 * one_tensor

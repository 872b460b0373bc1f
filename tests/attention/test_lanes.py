"""Calls dealt out to threads: all are done, errors come back, and a fork starts its own threads."""

import pytest
import torch

from padless.attention import lanes, varlen_attention

CPU = torch.device("cpu")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_every_task_is_done_once(two_threads):
    done = []
    lanes.run([(1.0, lambda i=i: done.append(i)) for i in range(100)], CPU)
    assert sorted(done) == list(range(100))
    assert torch.get_num_threads() == 2


def test_lanes_compute_alone_and_record_no_graph(two_threads):
    seen = []
    lanes.run([(1.0, lambda: seen.append((torch.get_num_threads(), torch.is_grad_enabled())))] * 8, CPU)
    assert set(seen) == {(1, False)}


def test_an_error_in_a_lane_is_raised(two_threads):
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lanes.run([(1.0, lambda: None)] * 7 + [(1.0, fail)], CPU)


def test_two_threads_give_the_bits_of_one():
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(700, 4, 16, generator=make, requires_grad=True) for _ in range(3))
    cu = [0, 90, 200, 320, 400, 480, 560, 630, 660, 680, 700]
    before, found = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        out = varlen_attention(q, k, v, cu_seqlens=cu)
        found.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))

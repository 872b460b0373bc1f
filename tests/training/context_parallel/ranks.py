"""Real processes that talk by gloo, as few lines as a test can start them with."""

import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(ranks: int, job: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """Call `job(rank, *arguments)` in `ranks` processes of one group; what each returned, rank by rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_main, args=(ranks, port, job, str(folder), arguments), nprocs=ranks)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(ranks)]


def _main(rank: int, ranks: int, port: int, job: Callable[..., Any], folder: str, arguments: tuple) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    try:
        torch.save(job(rank, *arguments), Path(folder) / f"rank-{rank}.pt")
    except BaseException:  # noqa: BLE001 - told and ended, whatever it is
        traceback.print_exc()
        os._exit(1)  # the others would wait for this rank for minutes
    dist.barrier()
    # gloo's threads can abort an orderly exit of the interpreter; the result is on disk, so leave without one.
    os._exit(0)

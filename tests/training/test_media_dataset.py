"""Rows with images: decoded only for the rows that are asked for, dealt by what both towers pay, resumed exactly."""

from typing import Any

import numpy as np
import pytest

from padless.errors import PadlessError
from padless.rows import MediaLayout
from padless.training import Cost, MediaDataset, PackedLoader, RowSampler, TowersCost

LAYOUT = MediaLayout(image_token=90)


def make(count: int = 40) -> list[Any]:
    rng = np.random.default_rng(0)
    samples: list[Any] = []
    for i in range(count):
        grids = [[1, *(2 * rng.integers(1, 5, 2)).tolist()] for _ in range(int(rng.integers(0, 3)))]
        tokens = sum(h * w // 4 for _, h, w in grids)
        ids = [*range(1, 2 + int(rng.integers(1, 8))), *[90] * tokens, 3]
        samples.append({"input_ids": ids, "number": i, **({"image_grid_thw": grids} if grids else {})})
    return samples


class Reader:
    """Makes the pixels of a sample and remembers that it did; a value of each pixel names the sample."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __call__(self, sample: Any) -> dict[str, np.ndarray]:
        self.read.append(sample["number"])
        patches = sum(h * w for _, h, w in sample["image_grid_thw"])
        return {"pixel_values": np.full((patches, 6), sample["number"], dtype=np.float32)}


def dataset(reader: Any, samples: Any = None, **options: Any) -> MediaDataset:
    sizes = {"capacity": 64, "patch_capacity": 120, **options}
    return MediaDataset(samples or make(), reader, layout=LAYOUT, **sizes)


def test_only_the_samples_of_the_row_are_decoded() -> None:
    reader = Reader()
    rows = dataset(reader)
    assert reader.read == [], "planning decodes nothing"
    batch = rows[3]
    pictured = [i for i in batch.sample_ids.tolist() if "image_grid_thw" in rows.samples[i]]
    assert reader.read == pictured
    assert batch.media is not None
    owners = batch.sample_ids[batch.media["image_segment_ids"] - 1]
    patches = batch.media["image_grid_thw"].prod(axis=1)
    assert batch.media["pixel_values"][:, 0].tolist() == np.repeat(owners, patches).tolist()


def test_every_sample_comes_once_under_both_capacities() -> None:
    rows = dataset(Reader())
    batches = [rows[i] for i in range(len(rows))]
    assert sorted(i for batch in batches for i in batch.sample_ids.tolist()) == list(range(40))
    for batch in batches:
        assert batch.num_tokens <= 64
        assert batch.media is None or batch.media["pixel_values"].shape[0] <= 120


def test_sampler_and_loader_take_it_and_resume() -> None:
    def loader() -> PackedLoader:
        sampler = RowSampler(dataset(Reader()), rows=2, drop_last=False, seed=3, replan=True)
        return PackedLoader(sampler)

    whole = [batch.sample_ids.tolist() for batch in loader()]
    first = loader()
    iterator = iter(first)
    seen = [next(iterator).sample_ids.tolist() for _ in range(2)]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert seen + [batch.sample_ids.tolist() for batch in second] == whole


def test_workers_decode_the_same_rows() -> None:
    def pixels(workers: int) -> list[float]:
        loader = PackedLoader(RowSampler(dataset(Reader()), rows=2, drop_last=False, seed=3), num_workers=workers)
        return [float(batch.media["pixel_values"].sum()) for batch in loader if batch.media is not None]

    assert pixels(2) == pixels(0)


def test_the_vision_tower_counts_in_the_balance() -> None:
    """Rows of equal text cost and unequal images: only a cost that sees the tower deals them evenly."""
    samples = []
    for i in range(64):
        side = 2 if i % 4 else 16
        pad = [1] * (80 - side * side // 4)
        samples.append({"input_ids": [*pad, *[90] * (side * side // 4)], "image_grid_thw": [[1, side, side]]})
    rows = dataset(Reader(), samples, capacity=80, patch_capacity=256)
    towers = TowersCost(linear=1.0, patch=1.0, patch_pair=0.01)
    blind = RowSampler(rows, rows=32, ranks=4, rank=0, drop_last=True, cost=Cost(linear=1.0))
    aware = RowSampler(rows, rows=32, ranks=4, rank=0, drop_last=True, cost=towers)
    waiting = [sampler.imbalance(cost=towers).mean() - 1 for sampler in (aware, blind)]
    assert waiting[0] < 0.5 * waiting[1]
    costs = rows.row_costs(rows.plan, towers)
    for row in range(len(rows)):
        [i] = rows.plan.row(row)[0].tolist()
        _, h, w = samples[i]["image_grid_thw"][0]
        assert costs[row] == pytest.approx(80 + h * w + 0.01 * (h * w) ** 2)


def test_a_wrong_sample_is_found_when_the_set_is_made() -> None:
    broken = [*make(3), {"input_ids": [1, 90, 2], "image_grid_thw": [[1, 4, 4]]}]
    with pytest.raises(PadlessError, match="sample 3 holds 1 image placeholders and its grids make 4"):
        dataset(Reader(), broken)
    with pytest.raises(PadlessError, match="no samples"):
        MediaDataset([], Reader(), layout=LAYOUT, capacity=8, patch_capacity=8)
    with pytest.raises(PadlessError, match="inside an image"):
        dataset(Reader(), oversize="split")
    with pytest.raises(PadlessError, match="sample 0 holds 1 image placeholders and its grids make 0"):
        dataset(Reader(), [[1, 90, 2]])
    with pytest.raises(PadlessError, match="without a row axis"):
        dataset(Reader(), [{"input_ids": np.array([[1, 90, 2]]), "image_grid_thw": [[1, 2, 2]]}])


def test_a_reader_that_gives_no_pixels_is_refused() -> None:
    """Its images would be read as text."""
    seen = {"input_ids": [1, 90, 2], "image_grid_thw": [[1, 2, 2]]}
    with pytest.raises(PadlessError, match="gave no pixel_values"):
        dataset(lambda sample: {"pixels": np.zeros((4, 6))}, [seen])[0]

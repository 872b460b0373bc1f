"""Parts of a corpus: runs of neighbouring sources that can be packed apart from each other."""

from collections.abc import Sequence

from padless.corpus.sources import Source

__all__ = ["PARTS", "part_numbers", "parts_of"]

PARTS = "parts"  # where an engine that makes parts apart keeps those that are done, until all are


def part_numbers(sources: Sequence[Source], part_bytes: int | None) -> list[int]:
    """The part of each source: a part ends with the source that brings it to `part_bytes`; None makes one part.

    A file is never cut, so a single large file is a part by itself.
    """
    if part_bytes is None:
        return [0] * len(sources)
    numbers: list[int] = []
    number = held = 0
    for source in sources:
        if held >= part_bytes:
            number, held = number + 1, 0
        numbers.append(number)
        held += sum(path.stat().st_size for path in source.paths)
    return numbers


def parts_of(sources: Sequence[Source], part_bytes: int | None) -> list[range]:
    """The sources of each part, by number."""
    numbers = part_numbers(sources, part_bytes)
    starts = [at for at in range(len(numbers)) if at == 0 or numbers[at] != numbers[at - 1]]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True)]

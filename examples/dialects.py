"""One row of three samples in every dialect. docs/rows.md shows what this prints.

python -W ignore examples/dialects.py
"""

from typing import Any

from padless import collate
from padless.frameworks.dialects import DIALECTS, dialect

ROW = [
    {"input_ids": [11, 12, 13, 14], "targets": [False, False, True, True]},  # a prompt of two tokens, an answer of two
    {"input_ids": [21, 22, 23]},  # plain text: every token but the first is a target
    {"input_ids": [31, 32]},
]
RECTANGULAR = {"jax"}  # its shapes are rows x capacity


def shown(value: Any) -> Any:
    """Arrays and tensors as lists, objects as their fields."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "to_pylist"):
        return value.to_pylist()[0]
    return value


def lines(name: str) -> list[str]:
    batch = collate([ROW], capacity=10 if name in RECTANGULAR else None)
    said = dialect(name)(batch)
    fields = shown(said) if name in ("trl", "nemo") else said
    out = []
    for field, value in fields.items():
        if field == "packed_seq_params":
            out += [f"  {field}.{part} {shown(v)}" for part, v in vars(value).items() if v is not None]
        else:
            out.append(f"  {field} {shown(value)}")
    return [name, *out]


def main() -> None:
    for name in DIALECTS:
        print("\n".join(lines(name)))


if __name__ == "__main__":
    main()

"""Real, ragged text that every machine has: the functions of Python's standard library.

Each function with a docstring is a sample. Its prompt is the signature and the docstring, its completion is the body.
"""

import ast
import json
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def functions(folder: Path) -> Iterator[dict[str, str]]:
    """The functions of every module below `folder`, by file name and then by line: always in the same order."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if NOT_LIBRARY.isdisjoint(name.parts):
            yield from functions_of(path.read_bytes(), name.as_posix())


def functions_of(source: bytes, name: str) -> Iterator[dict[str, str]]:
    """The functions of one module; nothing when it is not Python of this version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules hold escapes that new Pythons warn about
            tree = ast.parse(source)
        lines = source.decode("utf-8").splitlines(keepends=True)
    except (SyntaxError, UnicodeDecodeError):
        return
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in sorted(found, key=lambda node: node.lineno):
        if ast.get_docstring(node) is None or len(node.body) < 2:
            continue
        docstring_end = node.body[0].end_lineno or 0
        if docstring_end >= node.body[1].lineno:
            continue  # written on one line
        indent = " " * node.col_offset
        whole = [line.removeprefix(indent) for line in lines[node.lineno - 1 : node.end_lineno]]
        size = docstring_end - node.lineno + 1
        # The line's end goes with the body: as tokens it belongs to the indentation after it, and a token across the
        # border would hold a piece of the prompt.
        yield {
            "prompt": "".join(whole[:size]).rstrip(),
            "completion": "\n" + "".join(whole[size:]).rstrip() + "\n",
            "source": f"{name}:{node.lineno}",
        }


def write_corpus(path: Path) -> int:
    """Write the corpus as JSON lines; returns how many samples it has."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for record in functions(Path(sysconfig.get_path("stdlib"))):
            file.write(json.dumps(record) + "\n")
            count += 1
    if not count:
        raise SystemExit(f"no Python sources in {sysconfig.get_path('stdlib')}; this Python came without them")
    return count

"""The house stands as docs/architecture.md says: floors, public face, light imports, file sizes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import padless

PACKAGE = Path(padless.__file__).parent
FLOORS = [
    "lengths",
    "planning",
    "corpus",
    "rows",
    "masks",
    "attention",
    "training",
    "auditing",
    "measure",
    "frameworks",
    "report",
    "cli",
]
NUMPY_ONLY = ["lengths", "planning", "rows", "masks"]
HEAVY = {"torch", "pyarrow", "tokenizers", "transformers", "datasets", "numba", "highspy", "rich", "jinja2"}
FACE = [
    "plan",
    "Plan",
    "LengthHistogram",
    "lower_bound",
    "pack",
    "TokenStore",
    "PackedDataset",
    "collate",
    "Batch",
    "Rule",
    "varlen_attention",
    "packed_loss",
    "audit",
]


def imports_of(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Every module that the file names in an import statement."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


@pytest.mark.parametrize("room", FLOORS)
def test_a_room_imports_only_from_the_floors_above_it(room: str) -> None:
    below = set(FLOORS[FLOORS.index(room) + 1 :])
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "padless" and len(parts) > 1:
                assert parts[1] not in below, f"{path.relative_to(PACKAGE)} imports {name}, which is a floor below"


@pytest.mark.parametrize("room", FLOORS[:-1])
def test_nothing_but_the_command_line_imports_frameworks(room: str) -> None:
    if room == "frameworks":
        return
    for path in sorted((PACKAGE / room).rglob("*.py")):
        assert not any(name.startswith("padless.frameworks") for name in imports_of(path)), path


@pytest.mark.parametrize("room", NUMPY_ONLY)
def test_the_core_imports_numpy_only_at_module_level(room: str) -> None:
    for path in sorted((PACKAGE / room).rglob("*.py")):
        roots = {name.split(".")[0] for name in imports_of(path, top_level_only=True)}
        assert not roots & HEAVY, f"{path.relative_to(PACKAGE)} imports {roots & HEAVY} at module level"


def test_the_public_face_is_pinned_and_every_name_resolves() -> None:
    assert sorted(padless.__all__) == sorted(FACE)
    assert sorted(set(dir(padless)) - {"__version__"}) == sorted(FACE)
    for name in FACE:
        assert getattr(padless, name) is not None


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="its names are plan, Plan"):
        padless.no_such_name  # noqa: B018


def modules_after(code: str) -> set[str]:
    out = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in out.stdout.split()}


def test_import_padless_loads_nothing_heavy() -> None:
    assert not modules_after("import padless") & (HEAVY | {"numpy", "click", "msgspec"})


def test_planning_touches_numpy_only() -> None:
    loaded = modules_after("import padless; padless.plan([3, 4, 5], capacity=8)")
    assert "numpy" in loaded
    assert not loaded & (HEAVY - {"numba"})


def test_files_stay_readable() -> None:
    sizes = sorted(len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py"))
    assert sizes[len(sizes) // 2] <= 160, "the median file is no longer short"
    assert sum(size > 400 for size in sizes) <= len(sizes) // 20, "more than a few files above 400 lines"
    assert sizes[-1] <= 600

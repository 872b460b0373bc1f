"""Every code block of the README and docs/ runs, top to bottom, one namespace per file.

Python blocks are executed; a `console` block's `$ command` lines are run in a shell, and what they print is compared
with what the page shows, numbers that depend on the machine's speed left out. The line before a fence may say more:
`<!-- not run: reason -->` leaves a block out, `<!-- numbers vary ... -->` compares words only. `make quickstart` stands
for the script that the target runs, in the environment of these tests.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"(?P<before>[^\n]*)\n```(?P<language>\w*)\n(?P<body>.*?)\n```", re.DOTALL)
LANGUAGES_RUN = {"python", "console"}
LANGUAGES_SHOWN = {"", "text", "json", "toml", "bash", "make", "html"}
STAND_INS = {"make quickstart": f"{sys.executable} {ROOT / 'examples' / 'quickstart.py'}"}
PROGRESS = re.compile(r"(?m)^padless: \d+ s, .*\n?")  # a log line every few seconds, so on slow machines only
SPEED = re.compile(r"\d[\d,.]* ?(?:s\b|ms\b|tokens/s|M tokens/s)")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    body: str
    numbers_vary: bool


def blocks_of(page: Path) -> list[Block]:
    text = "\n" + page.read_text()
    found = []
    for match in FENCE.finditer(text):
        if match["before"].strip().startswith("<!-- not run:"):
            continue
        line = text.count("\n", 0, match.start("body"))
        vary = match["before"].strip().startswith("<!-- numbers vary")
        found.append(Block(page, line, match["language"], match["body"], vary))
    return found


def test_the_pages_use_known_languages() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            assert block.language in LANGUAGES_RUN | LANGUAGES_SHOWN, f"{page.name}:{block.line}: {block.language!r}"


def run_python(block: Block, namespace: dict[str, object]) -> None:
    # Padded with newlines so that a traceback names the page's own line.
    code = compile("\n" * block.line + block.body, str(block.page), "exec")
    exec(code, namespace)


def run_console(block: Block, folder: Path) -> None:
    """Run each `$ ` line; the lines below it are what it must print (`...` stands for anything)."""
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for command, shown in steps_of(block):
        result = subprocess.run(
            STAND_INS.get(command, command),
            shell=True,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        printed = result.stdout + result.stderr
        assert result.returncode == 0, f"{block.page.name}:{block.line}: {command}\n{printed}"
        if shown.strip():
            pattern = ".*".join(re.escape(part) for part in normal(shown, block.numbers_vary).split("..."))
            assert re.fullmatch(pattern, normal(printed, block.numbers_vary), re.DOTALL), (
                f"{block.page.name}:{block.line}: `{command}` printed\n{printed}\nbut the page shows\n{shown}"
            )


def steps_of(block: Block) -> list[tuple[str, str]]:
    """Each command with what it must print; a script of STAND_INS prints commands of its own."""
    if block.body.removeprefix("$ ").split("\n")[0] in STAND_INS:
        command, _, shown = block.body.removeprefix("$ ").partition("\n")
        return [(command, shown)]
    steps = [step.partition("\n") for step in re.split(r"(?m)^\$ ", block.body)[1:]]
    return [(command, shown) for command, _, shown in steps]


def normal(text: str, numbers_vary: bool) -> str:
    """Text without what may differ between machines: speeds, progress, trailing blanks and, if asked, every number."""
    text = SPEED.sub("<speed>", PROGRESS.sub("", text))
    if numbers_vary:
        text = re.sub(r" *\d[\d,.]*%?", "<number>", re.sub("─+", "─", text))
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PADLESS_DOCS_ROOT", str(ROOT))
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in blocks_of(page):
        if block.language == "python":
            run_python(block, namespace)
        elif block.language == "console":
            run_console(block, tmp_path)

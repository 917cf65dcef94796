"""The documents' Python examples run, and what they name exists."""

import json
import re
from pathlib import Path

import pytest

from slipstream import DRAFTERS

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [
    pytest.param(code, id=f"{document.stem}-{number}")
    for document in DOCUMENTS
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE))
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_examples_run(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, drafter in list(DRAFTERS.items()):
        monkeypatch.setitem(DRAFTERS, name, drafter)  # an example may add one: the dict is put back afterwards
    before = set(DRAFTERS)
    exec(compile(code, "example", "exec"), {})
    for added in set(DRAFTERS) - before:
        del DRAFTERS[added]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", document.read_text())
    for target in [*links, *re.findall(r'src(?:set)?="(?!http)([^"]+)"', document.read_text())]:
        assert (document.parent / target).exists(), target


def test_the_index_has_every_document() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for document in (ROOT / "docs").iterdir():
        assert document.name == "README.md" or document.suffix == ".svg" or f"({document.name})" in index, document.name


def test_the_readme_s_figures_are_measured_ones() -> None:
    readme = (ROOT / "README.md").read_text()
    names = ("generate-bf16", "generate-q4_k_m", "generate-q4_k_m-avx2", "generate-q4_k_m-sampled")
    records = [json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text()) for name in names]
    rows = re.findall(r"^\| (\w+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", readme, re.MULTILINE)
    assert len(rows) == 7
    for category, *cells in rows:
        found = [
            {**record["categories"], "overall": record["overall"]}[category]["auto"]["speedup"] for record in records
        ]
        assert cells == ["–" if speedup is None else f"{speedup:.2f}×" for speedup in found], category


def test_every_drafter_and_module_is_documented() -> None:
    readme = (ROOT / "README.md").read_text()
    structure = (ROOT / "docs" / "structure.md").read_text()
    assert all(f"`{name}`" in readme for name in DRAFTERS)
    package = ROOT / "src" / "slipstream"
    for module in package.rglob("*.py"):
        name = module.relative_to(package).as_posix()
        if module.name not in ("__init__.py", "__main__.py") and not name.startswith(("cli/", "kernels/")):
            assert module.name in structure, f"{name} has no line in docs/structure.md"

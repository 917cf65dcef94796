"""slipstream models: what is at hand, and what can be loaded."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from slipstream.cli.options import examples, json_option
from slipstream.cli.render import visible
from slipstream.errors import ModelError
from slipstream.files import cache_directory
from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.config import ARCHITECTURES
from slipstream.models.default_model import DEFAULT_MODEL, default_model_path
from slipstream.models.gguf_choice import gguf_models, names
from slipstream.models.hub import files_under, has_safetensors, hub_library
from slipstream.models.tensors import BLOCKS

__all__ = ["Found", "find_models", "models"]


@dataclass(frozen=True, slots=True)
class Found:
    """A model on this machine.

    model       what --model takes
    problem     why it can't be loaded, None if it can
    end_tokens  the tokens that end an answer, with who says so: the model's settings, its chat template, or the name
    remarks     what the user should know of how its files are read
    """

    model: str
    path: str
    bytes: int
    problem: str | None
    end_tokens: dict[str, str]
    remarks: tuple[str, ...]


@click.command(
    short_help="List models: at hand, and loadable.", epilog=examples("slipstream models", "slipstream models --json")
)
@json_option
def models(as_json: bool) -> None:
    """List the default model, other models in the cache, and what can be loaded."""
    default = default_model_path()
    here = _found(DEFAULT_MODEL, default, [default]) if default.is_file() else None
    others = list(find_models())
    if as_json:
        found = {"model": DEFAULT_MODEL, "path": str(default), "bytes": None} if here is None else asdict(here)
        record = {
            "default": {**found, "cached": here is not None},
            "others": [asdict(other) for other in others],
            "architectures": list(ARCHITECTURES),
            "tensor_types": list(BLOCKS),
        }
        click.echo(json.dumps(record))
        return
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("Model", "Size", "Answers end at", "Where"):
        table.add_column(heading, justify="right" if heading == "Size" else "left", overflow="fold")
    if here is None:
        where = Text("not here yet: fetched on first use (98 MB)", "yellow")
        table.add_row(Text(f"{DEFAULT_MODEL} (default)", "green"), "", "", where)
    for model in [*([here] if here else []), *others]:
        name = Text(f"{DEFAULT_MODEL} (default)", "green") if model is here else Text(visible(model.model))
        where = Text(visible(model.problem), "red") if model.problem else Text(visible(model.path))
        if where.plain == name.plain:
            where = Text()
        ends = ", ".join(f"{visible(token)} ({source})" for token, source in model.end_tokens.items())
        table.add_row(name, decimal(model.bytes), Text(ends), where)
    console.print(table)
    for model in [*([here] if here else []), *others]:
        for remark in model.remarks:
            console.print(Text(f"{visible(model.model)}: {visible(remark)}", "yellow"))
    console.print(
        f"\nLoadable: .gguf files, directories of safetensors and models of the hub (org/name, org/name:Q8_0), of the "
        f"architectures {', '.join(ARCHITECTURES)}, with weights in {', '.join(BLOCKS)}. "
        f"Models are kept in {cache_directory()} and in the hub's own cache."
    )


def find_models() -> Iterator[Found]:
    """The models in Slipstream's cache, but for the default one, and in the Hugging Face hub's."""
    cache = cache_directory()
    paths = sorted(cache.iterdir()) if cache.is_dir() else []
    yield from _found_in(cache, [path.name for path in paths if path.is_file() and path != default_model_path()])
    for path in paths:
        if path.is_dir() and not path.name.startswith("."):
            yield from _found_in(path, files_under(path))
    yield from _find_hub_models()


def _find_hub_models() -> Iterator[Found]:
    library = hub_library()
    try:
        repositories = library.scan_cache_dir(library.constants.HF_HUB_CACHE).repos
    except (library.CacheNotFound, OSError, ValueError):  # none, or none that this user may read
        return
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        revisions = sorted(repository.revisions, key=lambda revision: ("main" in revision.refs, revision.last_modified))
        if repository.repo_type == "model" and revisions:
            path = revisions[-1].snapshot_path
            yield from _found_in(path, files_under(path), repository.repo_id)


def _found_in(path: Path, files: list[str], repository: str | None = None) -> Iterator[Found]:
    """The models in a directory: that of safetensors, and each of GGUF; by their names on the hub, else by their paths.
    A repository that holds none is told, with the problem."""
    ggufs = gguf_models(files)
    if has_safetensors(files) or (not ggufs and (repository or "config.json" in files)):
        yield _found(repository or str(path), path, [path / file for file in files if not file.endswith(".gguf")])
    named = names(repository, ggufs) if repository else {str(path / model.files[0]): model for model in ggufs}
    for name, model in named.items():
        yield _found(name, path / model.files[0], [path / file for file in model.files])


def _found(name: str, path: Path, files: list[Path]) -> Found:
    size = sum(file.stat().st_size for file in files if file.is_file())
    try:
        tokenizer = open_checkpoint(path).tokenizer()
    except ModelError as error:
        return Found(name, str(path), size, str(error), {}, ())
    ends = {tokenizer.token_string(token) or f"token {token}": who for token, who in tokenizer.end_tokens.items()}
    return Found(name, str(path), size, None, dict(ends), tokenizer.remarks)

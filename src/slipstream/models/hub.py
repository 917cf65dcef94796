"""Models from the Hugging Face hub: settings first, weights only if the model can be used."""

import glob
import io
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from slipstream.errors import ModelError
from slipstream.files import user_cache
from slipstream.models.gguf_choice import choose, gguf_models
from slipstream.models.safetensors_dir import read_config

__all__ = ["HubName", "fetch_from_hub", "files_under", "has_safetensors", "hub_library", "hub_name"]

_SETTINGS = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "adapter_config.json",  # of what is refused
]
_WEIGHTS = ["model.safetensors", "model-*.safetensors", "model.safetensors.index.json"]

_Report = Callable[[str, int, int], None]


class HubName(NamedTuple):
    """What "org/name", "org/name:Q8_0" or "org/name/file.gguf" names."""

    repository: str
    quantisation: str | None
    file: str | None


def hub_name(model: str) -> HubName | None:
    """The parts of a model's name on the hub, None if it can't be one."""
    match = re.fullmatch(r"([\w-][\w.-]*/[\w.-]+)(?::([\w-]+)|/(.+\.gguf))?", model)
    if not match or match[1].endswith(".gguf"):
        return None
    return HubName(*match.groups())


def has_safetensors(files: list[str]) -> bool:
    """Whether a directory or repository with these files is a model in safetensors."""
    return "config.json" in files and not {"model.safetensors", "model.safetensors.index.json"}.isdisjoint(files)


def files_under(directory: Path) -> list[str]:
    """The files in a directory and those below, by their paths from there with slashes."""
    return [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]


def fetch_from_hub(name: HubName, report: _Report) -> tuple[str, Path]:
    """The model's full name, and its directory of safetensors or its first GGUF file; downloaded unless it is in the
    hub's own cache; report(what, done_bytes, total_bytes) follows.

    Only the repository is named: safetensors if it has them, else the GGUF file that `choose` takes. Without a network
    the cache is all there is. Raises ModelError where the model can't be had or can't be used.
    """
    repository = name.repository
    files, here = _listing(repository)
    models = gguf_models(files)
    is_chosen = name.quantisation or name.file
    if not is_chosen and (has_safetensors(files) or ("config.json" in files and not models)):
        read_config(_snapshot(repository, _SETTINGS, report, here))
        return repository, _snapshot(repository, _SETTINGS + _WEIGHTS, report, here)
    if not is_chosen and not models:
        raise ModelError(f"{repository}: it holds no model: neither config.json nor a .gguf file")
    full_name, model = choose(repository, models, name.quantisation, name.file)
    if missing := [file for file in model.files if file not in files]:
        raise ModelError(f"{full_name}: {missing[0]}, a part of the model, is missing")
    patterns = [glob.escape(file) for file in model.files]
    return full_name, _snapshot(repository, patterns, report, here) / model.files[0]


def hub_library() -> ModuleType:
    """The module huggingface_hub: slow to import, and only needed for hub ids.

    At its import it settles where its files are: in a directory named "~" where there is no home directory. So it is
    told a better one before.
    """
    if not any(name in os.environ for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")):
        os.environ["HF_HOME"] = str(user_cache("huggingface"))
    import huggingface_hub

    return huggingface_hub


def _listing(repository: str) -> tuple[list[str], bool]:
    """The repository's files on the hub, and False; where the hub doesn't tell, those in its cache here, and True."""
    library = hub_library()
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    with _as_model_error(repository):
        try:
            return [file.rfilename for file in library.HfApi().model_info(repository).siblings or ()], False
        except HFValidationError:
            raise
        except Exception as error:  # of many kinds, as networks have
            try:
                # A pattern that no file has: what is here counts, whether or not it is all of the repository.
                snapshot = library.snapshot_download(repository, local_files_only=True, allow_patterns=[""])
            except LocalEntryNotFoundError as not_here:
                raise (error if isinstance(error, RepositoryNotFoundError) else not_here) from None
            return files_under(Path(snapshot)), True


@contextmanager
def _as_model_error(model: str) -> Iterator[None]:
    """Says in the user's terms what goes wrong with the hub."""
    import httpx2  # what the hub's library is made with
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        yield
        return
    except GatedRepoError:
        reason = "its owner wants you to agree to terms first: do so on its page, then log in with `hf auth login`"
    except RepositoryNotFoundError:
        reason = (
            "the hub has no public model of this name, and no file is called so here: check it, or log in with "
            "`hf auth login` if it is private"
        )
    except LocalEntryNotFoundError:
        reason = "the hub can't be reached, and the model isn't in its cache: check the network, or give a local path"
    except (OSError, ValueError, RuntimeError, httpx2.HTTPError) as error:
        reason = " ".join(f"{error}".split())[:300]
    raise ModelError(f"can't fetch {model} from the Hugging Face hub: {reason}")


def _snapshot(model: str, patterns: list[str], report: _Report, here: bool) -> Path:
    """The directory of the files that match, downloaded unless they are in the cache; here: they all are."""
    huggingface_hub = hub_library()
    from tqdm import tqdm  # type: ignore[import-untyped]  # the kind of thing that the hub tells its progress to

    done = total = 0

    class Bar(tqdm):  # type: ignore[misc]
        """Hands on what it would draw. The hub keeps two, of what came in and of what is written: the larger counts."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            options = {name: value for name, value in options.items() if name not in ("name", "disable")}
            super().__init__(*arguments, **(options | {"file": io.StringIO(), "mininterval": 0.1}))

        def display(self, *_: Any, **__: Any) -> bool:
            nonlocal done, total
            if self.unit == "B" and self.total:
                done, total = max(done, int(self.n)), max(total, int(self.total))
                report(f"downloading {model}", done, total)
            return True

    Bar.set_lock(threading.RLock())  # else tqdm starts a process of its own for one that works across processes
    with _as_model_error(model):
        return Path(
            huggingface_hub.snapshot_download(model, allow_patterns=patterns, tqdm_class=Bar, local_files_only=here)
        )

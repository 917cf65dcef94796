"""Models from the Hugging Face hub: settings first, weights only if the model can be used."""

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from slipstream.errors import ModelError
from slipstream.files import user_cache
from slipstream.models.safetensors_dir import read_config

__all__ = ["fetch_from_hub", "hub_library"]

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


def fetch_from_hub(model: str, report: _Report) -> Path:
    """The local directory of hub model "org/name", downloaded unless it is in the hub's own cache;
    report(what, done_bytes, total_bytes) follows. Raises ModelError where it can't be had or can't be used."""
    read_config(_snapshot(model, _SETTINGS, report))
    return _snapshot(model, _SETTINGS + _WEIGHTS, report)


def hub_library() -> ModuleType:
    """The module huggingface_hub: slow to import, and only needed for hub ids.

    At its import it settles where its files are: in a directory named "~" where there is no home directory. So it is
    told a better one before.
    """
    if not any(name in os.environ for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")):
        os.environ["HF_HOME"] = str(user_cache("huggingface"))
    import huggingface_hub

    return huggingface_hub


def _snapshot(model: str, patterns: list[str], report: _Report) -> Path:
    huggingface_hub = hub_library()
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
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
    try:
        return Path(huggingface_hub.snapshot_download(model, allow_patterns=patterns, tqdm_class=Bar))
    except GatedRepoError:
        reason = "its owner wants you to agree to terms first: do so on its page, then log in with `hf auth login`"
    except RepositoryNotFoundError:
        reason = "the hub has no public model of this name: check it, or log in with `hf auth login` if it is private"
    except LocalEntryNotFoundError:
        reason = "the hub can't be reached, and the model isn't in its cache: check the network, or give a local path"
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(f"{error}".split())[:300]
    raise ModelError(f"can't fetch {model} from the Hugging Face hub: {reason}")

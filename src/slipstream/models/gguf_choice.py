"""Which GGUF files of a directory or repository are models, how they are called, and which one is meant."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from slipstream.errors import ModelError

__all__ = ["PREFERRED", "GgufModel", "choose", "gguf_models", "names"]

PREFERRED = (
    *("Q4_K_M", "Q4_K_L", "Q4_K_XL", "Q4_K_S", "Q4_K", "Q4_1", "Q4_0"),
    *("Q5_K_S", "Q5_K_M", "Q5_K_L", "Q5_K_XL", "Q5_K", "Q5_0", "Q5_1"),
    *("Q6_K", "Q6_K_L", "Q6_K_XL", "Q8_0", "Q8_K_XL", "BF16", "F16", "F32"),
)
"""What is taken where only the repository is named, best first: the nearest to Q4_K_M, the larger one before the
smaller. Files called otherwise (Q2_K, IQ3_XS, …) hold tensors that can't be read."""

_LABEL = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q[1-9]_(?:K|NL|XXS|XS|S|M|[0-9])(?:_(?:XXS|XS|XL|S|M|L|[0-9]))*"
    r"|TQ[12]_0|MXFP4|B?F16|F32|FP16|FP32))(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


class GgufModel(NamedTuple):
    """A model's files, all parts in order, and the quantisation in their names, such as "Q4_K_M" (None: none is)."""

    files: tuple[str, ...]
    quantisation: str | None


def gguf_models(files: Iterable[str]) -> list[GgufModel]:
    """The models among files, by their paths with slashes. Projectors of images and importance matrices are none."""
    found = {}
    for file in sorted(files):
        base = PurePosixPath(file).name
        quantisation = _quantisation(file)
        if not base.lower().endswith(".gguf") or "mmproj" in base.lower():
            continue
        if "imatrix" in base.lower() and quantisation is None:
            continue
        part = _PART.fullmatch(file)
        parts = [file]
        if part:
            parts = [f"{part[1]}-{number:05}-of-{part[3]}{file[-5:]}" for number in range(1, max(1, int(part[3])) + 1)]
        found[parts[0]] = GgufModel(tuple(parts), quantisation)
    return list(found.values())


def names(repository: str, models: Iterable[GgufModel]) -> dict[str, GgufModel]:
    """The models by their names: "org/name:Q4_K_M", or "org/name/file.gguf" where several have that quantisation."""
    models = list(models)
    counts = Counter(model.quantisation for model in models)
    return {
        f"{repository}:{model.quantisation}"
        if model.quantisation and counts[model.quantisation] == 1
        else f"{repository}/{model.files[0]}": model
        for model in models
    }


def choose(
    repository: str, models: list[GgufModel], quantisation: str | None = None, file: str | None = None
) -> tuple[str, GgufModel]:
    """The model that is meant, and its name: the one with this quantisation or file, else the one whose quantisation
    comes first in PREFERRED, else the only one.

    Raises ModelError, which lists the models, where there is none or more than one, and where it can't be read.
    """
    named = names(repository, models)
    listed = ", ".join(named) or "none"
    listed = listed if len(listed) <= 800 else f"{listed[:800]}…"
    if file is not None:
        meant = [name for name, model in named.items() if file in model.files]
    elif quantisation is not None:
        wanted = quantisation.upper()
        meant = [name for name, model in named.items() if model.quantisation == wanted]
    else:
        best = min((_rank(model) for model in models), default=0)
        meant = [name for name, model in named.items() if _rank(model) == best]
    if not meant:
        raise ModelError(f"{repository}: there is no {file or quantisation or 'GGUF model'}: it has {listed}")
    if all(_rank(named[name]) == _UNREADABLE for name in meant):
        raise ModelError(f"{repository}: it has {listed}: of these kinds can be read: {', '.join(PREFERRED)}")
    if len(meant) > 1:
        raise ModelError(f"{repository}: several of its models are meant: name one of {listed}")
    return meant[0], named[meant[0]]


_UNREADABLE = 2 * len(PREFERRED) + 1


def _rank(model: GgufModel) -> int:
    """By the place in PREFERRED, "UD-" (mixed by another recipe) behind the plain kind, then what names no kind."""
    if model.quantisation is None:
        return _UNREADABLE - 1
    plain = model.quantisation.removeprefix("UD-")
    if plain not in PREFERRED:
        return _UNREADABLE
    return 2 * PREFERRED.index(plain) + (plain != model.quantisation)


def _quantisation(file: str) -> str | None:
    """The last one in the file's name, else in its folders'."""
    path = PurePosixPath(file)
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
    found = _LABEL.findall(stem) or _LABEL.findall(str(path.parent))
    return re.sub(r"^FP", "F", found[-1].upper()) if found else None

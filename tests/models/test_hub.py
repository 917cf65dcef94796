"""Models of the Hugging Face hub: which file is meant, fetched from a hub on localhost or taken from the cache."""

import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import gguf_files
import huggingface_hub
import pytest
import tiny
from fake_hub import FakeHub
from huggingface_hub import constants

from slipstream.cli.models import find_models
from slipstream.errors import ModelError
from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.gguf_choice import PREFERRED, choose, gguf_models, names
from slipstream.models.hub import HubName, hub_name

NO_SERVER = "http://127.0.0.1:9"
GGUF_REPOSITORY = ("model-Q2_K", "model-Q4_K_S", "model-Q4_K_M", "model-Q8_0", "mmproj-model-F16", "model-imatrix")


def names_of(*stems: str) -> list[str]:
    return [f"{stem}.gguf" for stem in stems]


# Which is meant -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("org/name", HubName("org/name", None, None)),
        ("a.b-c_1/d.e-f_2", HubName("a.b-c_1/d.e-f_2", None, None)),
        ("org/name:q8_0", HubName("org/name", "q8_0", None)),
        ("org/name:UD-Q4_K_XL", HubName("org/name", "UD-Q4_K_XL", None)),
        ("org/name/a b.gguf", HubName("org/name", None, "a b.gguf")),
        ("org/name/folder/a.gguf", HubName("org/name", None, "folder/a.gguf")),
        *((name, None) for name in ("name", "./a/b", "/a/b", "a/b/c", "a/b.gguf", "~/m.gguf", "a/b:", "a/b:c:d", "")),
    ],
)
def test_names_on_the_hub(name: str, parts: HubName | None) -> None:
    assert hub_name(name) == parts


@pytest.mark.parametrize(
    ("file", "quantisation"),
    [
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Model.Q8_0.gguf", "Q8_0"),
        ("Model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model.i1-IQ3_XXS.gguf", "IQ3_XXS"),
        ("model-fp16.gguf", "F16"),
        ("Model-BF16-00001-of-00002.gguf", "BF16"),
        ("Q6_K/model-00001-of-00002.gguf", "Q6_K"),
        ("model-Q4_K_M-imat.gguf", "Q4_K_M"),
        ("model-imatrix-Q4_K_M.gguf", "Q4_K_M"),
        ("model-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("model-q4.gguf", None),
        ("model.gguf", None),
    ],
)
def test_the_quantisation_is_in_the_name(file: str, quantisation: str | None) -> None:
    assert [model.quantisation for model in gguf_models([file])] == [quantisation]


def test_what_is_no_model() -> None:
    assert gguf_models(["mmproj-F16.gguf", "imatrix_x.gguf", "README.md", "model.safetensors", "x.gguf.part"]) == []


def test_parts_are_one_model() -> None:
    parts = [f"a/b-Q8_0-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for some in (parts, parts[::-1], parts[1:]):
        [model] = gguf_models(some)
        assert model == (tuple(parts), "Q8_0")


def chosen(*stems: str) -> str:
    return choose("o/n", gguf_models(names_of(*stems)))[0]


def test_the_nearest_to_q4_k_m_is_taken() -> None:
    for better, worse in pairwise(PREFERRED):
        assert chosen(f"m-{worse}", f"m-{better}", "m-Q2_K") == f"o/n:{better}"
    assert chosen("m-UD-Q4_K_M", "m-Q4_K_M") == "o/n:Q4_K_M"
    assert chosen("m-UD-Q4_K_M", "m-Q8_0") == "o/n:UD-Q4_K_M"
    assert chosen("model", "m-F32") == "o/n:F32"
    assert chosen("model") == "o/n/model.gguf"


def test_what_is_named_is_taken() -> None:
    models = gguf_models(names_of("a-Q8_0", "b-Q4_0", "c-Q4_0", "d-00001-of-00002", "d-00002-of-00002"))
    assert list(names("o/n", models)) == ["o/n:Q8_0", "o/n/b-Q4_0.gguf", "o/n/c-Q4_0.gguf", "o/n/d-00001-of-00002.gguf"]
    assert choose("o/n", models, "q8_0")[1].files == ("a-Q8_0.gguf",)
    assert choose("o/n", models, None, "c-Q4_0.gguf")[1].files == ("c-Q4_0.gguf",)
    assert choose("o/n", models, None, "d-00002-of-00002.gguf")[1].files == models[3].files


@pytest.mark.parametrize(
    ("stems", "quantisation", "file", "words"),
    [
        (["a-Q8_0"], "Q4_0", None, "there is no Q4_0: it has o/n:Q8_0"),
        (["a-Q8_0"], None, "b.gguf", "there is no b.gguf: it has o/n:Q8_0"),
        ([], "Q4_0", None, "there is no Q4_0: it has none"),
        (["a-Q4_0", "b-Q4_0"], "Q4_0", None, "several of its models are meant: name one of o/n/a-Q4_0.gguf, o/n/b-Q4"),
        (["a-Q4_0", "b-Q4_0", "c-Q2_K"], None, None, "several"),
        (["a", "b"], None, None, "several"),
        (["a-Q2_K", "b-IQ3_S"], None, None, "it has o/n:Q2_K, o/n:IQ3_S: of these kinds can be read: Q4_K_M"),
        (["a-Q2_K", "b-Q8_0"], "Q2_K", None, "can be read"),
        (["a-Q2_K", "b-Q8_0"], None, "a-Q2_K.gguf", "can be read"),
    ],
)
def test_the_models_are_listed(stems: list[str], quantisation: str | None, file: str | None, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        choose("o/n", gguf_models(names_of(*stems)), quantisation, file)
    assert words in str(caught.value)


# Fetched, and from the cache ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("repositories")
    content = gguf_files.contents(num_hidden_layers=1)
    gguf = gguf_files.write(folder / "model.gguf", *content)
    split = gguf_files.write_parts(folder / "split", "model", *content, 3)
    safetensors = {path.name: path.read_bytes() for path in tiny.make(folder / "safetensors").iterdir()}
    files = {"README.md": b"text"} | {f"{stem}.gguf": stem.encode() for stem in GGUF_REPOSITORY}
    return {
        "org/gguf": files | {"model-Q4_K_M.gguf": gguf.read_bytes(), "model-Q8_0.gguf": gguf.read_bytes()},
        "org/split": {path.name: path.read_bytes() for path in split} | {"config.json": b"{}"},
        "org/both": safetensors | {"model-Q8_0.gguf": gguf.read_bytes()},
        "org/neither": {"README.md": b"text"},
    }


@pytest.fixture
def hub(
    repositories: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeHub]:
    """A hub with an empty cache beside it, both this process's only ones."""
    with FakeHub(repositories).running() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "own"))
        yield hub


def use(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, this is the hub's address."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.mark.parametrize(
    ("model", "name", "fetched"),
    [
        ("org/gguf", "org/gguf:Q4_K_M", ["model-Q4_K_M.gguf"]),
        ("org/gguf:q8_0", "org/gguf:Q8_0", ["model-Q8_0.gguf"]),
        ("org/gguf/model-Q8_0.gguf", "org/gguf:Q8_0", ["model-Q8_0.gguf"]),
        ("org/split", "org/split/model-00001-of-00003.gguf", [f"model-0000{part}-of-00003.gguf" for part in (1, 2, 3)]),
        ("org/both:Q8_0", "org/both:Q8_0", ["model-Q8_0.gguf"]),
    ],
)
def test_a_gguf_model(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, model: str, name: str, fetched: list[str]) -> None:
    seen: list[tuple[str, int, int]] = []
    checkpoint = open_checkpoint(model, lambda *progress: seen.append(progress))
    assert checkpoint.name == name
    assert sorted(hub.fetched) == fetched
    assert [file.name for file in checkpoint.files] == fetched
    checkpoint.tokenizer()
    use(NO_SERVER, monkeypatch)
    for known in (model, name):
        assert open_checkpoint(known).files == checkpoint.files
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert open_checkpoint(model).files == checkpoint.files
    [found] = find_models()
    assert found.model == name
    assert found.problem is None
    assert found.bytes == sum(file.stat().st_size for file in checkpoint.files)
    assert sorted(hub.fetched) == fetched


def test_safetensors_come_first(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint("org/both")
    assert checkpoint.name == "org/both"
    assert [file.name for file in checkpoint.files] == ["model.safetensors"]
    assert "model-Q8_0.gguf" not in hub.fetched
    open_checkpoint("org/both:Q8_0")
    use(NO_SERVER, monkeypatch)
    assert [found.model for found in find_models()] == ["org/both", "org/both:Q8_0"]
    assert {found.problem for found in find_models()} == {None}
    assert open_checkpoint("org/both").files == checkpoint.files


def test_without_a_network_the_cache_is_all_there_is(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = open_checkpoint("org/gguf:Q8_0")
    use(NO_SERVER, monkeypatch)
    assert open_checkpoint("org/gguf").files == fetched.files
    for model, words in (
        ("org/gguf:Q4_K_M", "there is no Q4_K_M: it has org/gguf:Q8_0"),
        ("org/both", "can't be reached"),
        ("org/both/a.gguf", "can't be reached"),
    ):
        with pytest.raises(ModelError, match=words):
            open_checkpoint(model)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("org/gguf:Q5_0", "there is no Q5_0: it has org/gguf:Q2_K, org/gguf:Q4_K_M, org/gguf:Q4_K_S, org/gguf:Q8_0"),
        ("org/gguf:Q2_K", "can be read"),
        ("org/gguf/mmproj-model-F16.gguf", "there is no mmproj-model-F16.gguf"),
        ("org/absent", "no public model"),
        ("models/q4/file.gguf", "no file is called so here"),
        ("org/neither", "it holds no model"),
    ],
)
def test_what_cannot_be_had(hub: FakeHub, caplog: pytest.LogCaptureFixture, model: str, words: str) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(ModelError) as caught:
        open_checkpoint(model)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert hub.fetched == []
    assert caplog.messages == []


def test_a_part_that_is_missing(hub: FakeHub) -> None:
    hub.repositories = {"org/split": dict(hub.repositories["org/split"])}
    del hub.repositories["org/split"]["model-00002-of-00003.gguf"]
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.gguf.* missing"):
        open_checkpoint("org/split")
    assert hub.fetched == []


def test_models_of_a_damaged_cache_are_listed_with_their_problem(hub: FakeHub) -> None:
    for file in open_checkpoint("org/split").files[1:]:
        file.unlink()
    [found] = find_models()
    assert "missing" in str(found.problem)
    Path(open_checkpoint("org/gguf").files[0]).write_bytes(b"GGUF")
    assert [(found.model, found.problem is None) for found in find_models()] == [
        ("org/gguf:Q4_K_M", False),
        (found.model, False),
    ]


def test_directories_and_files_here(hub: FakeHub, tmp_path: Path) -> None:
    """Each model of a directory has a name that can be opened."""
    own = tmp_path / "own"
    content = gguf_files.contents(num_hidden_layers=1)
    for folder, stem in ((own / "several", "a-Q8_0"), (own, "b")):
        gguf_files.write(folder / f"{stem}.gguf", *content)
        gguf_files.write_parts(folder, stem, *content, 2)
    (own / "several" / "mmproj.gguf").write_bytes(b"GGUF")
    found = list(find_models())
    assert [item.model.removeprefix(f"{own}/") for item in found] == [
        "b-00001-of-00002.gguf",
        "b.gguf",
        "several/a-Q8_0-00001-of-00002.gguf",
        "several/a-Q8_0.gguf",
    ]
    for item in found:
        assert item.problem is None
        open_checkpoint(item.model)
    (own / "several" / "a-Q8_0.gguf").unlink()
    assert len(open_checkpoint(own / "several").files) == 2


def test_the_cache_of_the_hub_may_be_unreadable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))

    def fail(directory: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", fail)
    assert list(find_models()) == []

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from material import (
    PLAINEST,
    QUANTISED,
    Cache,
    guarded,
    guards,
    packed,
    pieces,
    random_blocks,
    rows_of,
    same_bits,
    seeds,
    use,
    ways,
)

from slipstream.kernels import _native, reference


@dataclass
class Model:
    """Random layers, the same for both backends. The matrices are of the given kinds in turn: f32, bf16, int8, or a
    quantised format in its native precision."""

    seed: int
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    hidden: int = 44
    wide: int = 70
    layers: int = 2
    biases: bool = False
    norms: bool = False
    kinds: tuple[str, ...] = ("bf16",)
    built: dict = field(default_factory=dict)

    def on(self, backend) -> list:
        if backend not in self.built:
            self.built[backend] = [self._layer(backend, index) for index in range(self.layers)]
        return self.built[backend]

    def _layer(self, backend, index: int):
        rng = np.random.default_rng([self.seed, index])
        kinds = itertools.cycle(self.kinds)

        def matrix(rows: int, columns: int):
            kind = next(kinds)
            if kind in QUANTISED:
                return backend.pack(random_blocks(rng, kind, rows, columns, even=True), kind, rows, columns, "auto")
            values = rng.standard_normal((rows, columns)) / np.sqrt(columns)
            return packed(backend, values.astype(np.float32), kind)

        def vector(count: int, centre: float = 0.0):
            return (centre + 0.2 * rng.standard_normal(count)).astype(np.float32)

        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        sizes = {
            "q": q_width, "k": kv_width, "v": kv_width, "o": self.hidden,
            "gate": self.wide, "up": self.wide, "down": self.hidden,
        }  # fmt: skip
        extra = {f"{name}_bias": vector(size) for name, size in sizes.items()} if self.biases else {}
        if self.norms:
            extra |= {"q_norm": vector(self.head_dim, 1), "k_norm": vector(self.head_dim, 1)}
        return backend.Layer(
            index=index,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            epsilon=1e-5,
            scale=self.head_dim**-0.5,
            use_rope=index % 2 == 0,
            attention_norm=vector(self.hidden, 1),
            q=matrix(q_width, self.hidden),
            k=matrix(kv_width, self.hidden),
            v=matrix(kv_width, self.hidden),
            o=matrix(self.hidden, q_width),
            mlp_norm=vector(self.hidden, 1),
            gate=matrix(self.wide, self.hidden),
            up=matrix(self.wide, self.hidden),
            down=matrix(self.hidden, self.wide),
            **extra,
        )

    def cache(self, blocks: int = 8) -> Cache:
        return Cache(self.layers, self.kv_heads, blocks, self.head_dim)

    def run(self, backend, x: np.ndarray, caches: list[Cache], rows: list[dict], positions: list[int]) -> np.ndarray:
        """The layers over a copy of x."""
        angles = np.multiply.outer(positions, 0.7 ** np.arange(self.head_dim // 2))
        x = guarded(x)
        where = rows_of(backend, caches, rows, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
        backend.run_layers(x, self.on(backend), where)
        assert np.isnan(guards(x)).all()
        return x

    def chain(self, backend, x: np.ndarray, cache: Cache, start: int = 0) -> np.ndarray:
        """Rows that follow one another from position `start` on."""
        positions = list(range(start, start + len(x)))
        rows = [{"sequence": 0, "slot": at, "prefix": at + 1, "ancestors": []} for at in positions]
        return self.run(backend, x, [cache], rows, positions)

    def input(self, rows: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng([self.seed, 99, seed]).standard_normal((rows, self.hidden)).astype(np.float32)


float_models = st.builds(
    Model,
    seed=seeds,
    heads=st.sampled_from([3, 6]),
    kv_heads=st.sampled_from([1, 3]),
    head_dim=st.sampled_from([8, 16, 24]),
    hidden=st.integers(1, 60),
    wide=st.integers(1, 90),
    biases=st.booleans(),
    norms=st.booleans(),
    kinds=st.sampled_from([("f32",), ("bf16",)]),
)
mixed_models = st.builds(
    Model,
    seed=seeds,
    heads=st.sampled_from([4, 8]),
    kv_heads=st.sampled_from([1, 2]),
    head_dim=st.sampled_from([8, 16, 24, 32]),
    hidden=st.sampled_from([32, 96]),
    wide=st.sampled_from([64, 160]),
    biases=st.booleans(),
    kinds=st.permutations(["bf16", "f32", "int8", *(kind for kind in QUANTISED if not kind.endswith("K"))]).map(tuple),
)
wider_models = st.builds(
    Model,
    seed=seeds,
    heads=st.just(8),
    head_dim=st.just(32),
    hidden=st.just(256),
    wide=st.just(256),
    layers=st.just(1),
    kinds=st.permutations(["bf16", *QUANTISED]).map(tuple),
)
models = float_models | mixed_models | wider_models


@given(models, ways, st.integers(1, 120), seeds)
def test_a_prompt_gives_the_same_bits_whole_and_in_pieces(model, way, length, seed):
    x = model.input(length)
    use(PLAINEST)
    whole_cache, cache = model.cache(), model.cache()
    whole = model.chain(_native, x, whole_cache)
    assert np.isfinite(whole).all()
    use(way)
    for piece in pieces(np.random.default_rng(seed), length):
        assert same_bits(model.chain(_native, x[piece], cache, piece.start), whole[piece])
    assert same_bits(cache.keys, whole_cache.keys)
    assert same_bits(cache.values, whole_cache.values)


@given(models, ways, st.lists(st.integers(1, 30), min_size=1, max_size=5), seeds)
def test_a_sequence_gives_the_same_bits_alone_and_in_a_batch(model, way, lengths, seed):
    use(PLAINEST)
    inputs = [model.input(length, index) for index, length in enumerate(lengths)]
    alone = [model.chain(_native, x, model.cache()) for x in inputs]
    use(way)
    where = [(sequence, at) for sequence, length in enumerate(lengths) for at in range(length)]
    mixed = np.random.default_rng(seed).permutation(len(where)) if seed % 2 else range(len(where))
    where = [where[index] for index in mixed]
    rows = [{"sequence": sequence, "slot": at, "prefix": at + 1, "ancestors": []} for sequence, at in where]
    x = np.stack([inputs[sequence][at] for sequence, at in where])
    together = model.run(_native, x, [model.cache(2) for _ in lengths], rows, [at for _, at in where])
    assert same_bits(together, np.stack([alone[sequence][at] for sequence, at in where]))


@given(models, ways, st.integers(0, 40), st.integers(1, 20), seeds)
def test_a_node_of_a_tree_gives_the_bits_of_its_path(model, way, length, nodes, seed):
    rng = np.random.default_rng(seed)
    parents = [int(rng.integers(-1, node)) for node in range(nodes)]
    paths = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    x = model.input(length + nodes)
    cache = model.cache()
    use(way)
    if length:
        model.chain(_native, x[:length], cache)
    rows = [
        {"sequence": 0, "slot": length + node, "prefix": length, "ancestors": [length + a for a in paths[node]]}
        for node in range(nodes)
    ]
    tree = model.run(_native, x[length:], [cache], rows, [length + len(path) - 1 for path in paths])
    use(PLAINEST)
    for node in rng.permutation(nodes)[:3]:
        path = np.concatenate([x[:length], x[length:][paths[node]]])
        assert same_bits(model.chain(_native, path, model.cache())[-1], tree[node])


@given(models, st.integers(1, 20))
def test_native_and_reference_agree_to_rounding(model, length):
    x = model.input(length)
    native_cache, reference_cache = model.cache(2), model.cache(2)
    native = model.chain(_native, x, native_cache)
    expected = model.chain(reference, x, reference_cache)
    if set(model.kinds) <= {"f32", "bf16"}:
        np.testing.assert_allclose(native, expected, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(native_cache.keys, reference_cache.keys, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(native_cache.values, reference_cache.values, rtol=1e-3, atol=1e-3)
    else:
        # An activation that falls between two of its 8-bit steps may be rounded up by one and down by the other: that
        # moves single values of a row by much, the row by little.
        assert np.all(np.linalg.norm(native - expected, axis=1) <= 0.05 * np.linalg.norm(expected, axis=1))


def test_reference_prefill_in_pieces():
    model = Model(3)
    x = model.input(20)
    cache = model.cache(2)
    whole = model.chain(reference, x, model.cache(2))
    for piece in (slice(0, 7), slice(7, 8), slice(8, 20)):
        assert same_bits(model.chain(reference, x[piece], cache, piece.start), whole[piece])


def test_only_the_rows_slots_are_written(backend):
    model = Model(8)
    cache = model.cache(2)
    model.chain(backend, model.input(14), cache)
    before = cache.keys.copy(), cache.values.copy()
    model.chain(backend, model.input(5, 1), cache, 14)
    written = np.arange(32) < 19
    assert (np.isfinite(cache.values).all(axis=(0, 1, 3)) == written).all()
    assert (np.isnan(cache.values).all(axis=(0, 1, 3)) == ~written).all()
    lanes = np.moveaxis(cache.keys, 3, 4).reshape(2, 2, 32, 16)  # (layers, kv_heads, slots, head_dim)
    assert (np.isfinite(lanes).all(axis=(0, 1, 3)) == written).all()
    assert (np.isnan(lanes).all(axis=(0, 1, 3)) == ~written).all()
    assert same_bits(cache.keys[:, :, 0, :, :14], before[0][:, :, 0, :, :14])
    assert same_bits(cache.values[:, :, :14], before[1][:, :, :14])


def test_layers_of_a_slice_run_on_their_own_cache(backend):
    """Running the layers one by one is running them together: what layer skipping rests on."""
    model = Model(12)
    x = model.input(6)
    whole = model.chain(backend, x, model.cache())
    cache = model.cache()
    layers, split = model.on(backend), x
    for layer in layers:
        model.built[backend] = [layer]
        split = model.chain(backend, split, cache)
    assert same_bits(split, whole)


def test_no_rows(backend):
    model = Model(1)
    model.run(backend, model.input(0), [model.cache()], [], [])
    model.run(backend, model.input(0), [], [], [])


@pytest.mark.parametrize("kinds", [("bf16",), ("Q4_0", "Q5_0", "Q8_0", "Q4_1", "Q5_1")], ids="-".join)
@pytest.mark.parametrize("threads", [1, 2])
def test_large_layers(threads, kinds):
    """Real proportions, so that matrices are cut into chunks of rows and blocks of k."""
    model = Model(21, heads=9, kv_heads=3, head_dim=64, hidden=576, wide=1536, layers=1, kinds=kinds)
    x = model.input(110)
    use((_native.available_isas()[0], threads))
    whole = model.chain(_native, x, model.cache())
    cache = model.cache()
    for piece in (slice(0, 98), slice(98, 99), slice(99, 110)):
        assert same_bits(model.chain(_native, x[piece], cache, piece.start), whole[piece])

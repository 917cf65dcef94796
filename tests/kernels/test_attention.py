import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from material import PLAINEST, Cache, guarded, rows_of, same_bits, seeds, use, ways

from slipstream.kernels import KEY_BLOCK, _native, reference

head_dims = st.sampled_from([2, 8, 16, 20, 64, 80, 128])
kv_heads_counts, groups = st.integers(1, 3), st.integers(1, 7)


def no_rope(rows: int, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((rows, head_dim // 2), np.float32), np.zeros((rows, head_dim // 2), np.float32)


class Case:
    """Rows of several sequences, each of which sees a prefix and some more slots of its own sequence's cache. Slots
    that no row sees are NaN."""

    def __init__(self, seed: int, rows: int, sequences: int, kv_heads: int, group: int, head_dim: int, longest: int):
        rng = np.random.default_rng(seed)
        self.rows = []
        blocks = -(-(longest + rows + 1) // KEY_BLOCK)
        self.caches = [Cache(2, kv_heads, blocks, head_dim) for _ in range(sequences)]
        for _ in range(rows):
            sequence = int(rng.integers(sequences))
            prefix = int(rng.integers(0, longest + 1))
            free = [
                slot
                for slot in range(prefix, blocks * KEY_BLOCK)
                if (sequence, slot) not in {(row["sequence"], row["slot"]) for row in self.rows}
            ]
            own = int(rng.choice(free))
            ancestors = [int(slot) for slot in rng.permutation(free)[: rng.integers(0, 6)] if slot != own]
            self.rows.append({"sequence": sequence, "slot": own, "prefix": prefix, "ancestors": [*ancestors, own]})
        for row in self.rows:
            for slot in [*range(row["prefix"]), *row["ancestors"]]:
                self.caches[row["sequence"]].put(
                    slot, 2 * rng.standard_normal((2, kv_heads, head_dim)), rng.standard_normal((2, kv_heads, head_dim))
                )
        self.q = guarded(rng.standard_normal((rows, kv_heads * group * head_dim)).astype(np.float32))
        self.group, self.head_dim, self.scale = group, head_dim, head_dim**-0.5

    def run(self, backend, which: list[int]) -> np.ndarray:
        rows = rows_of(backend, self.caches, [self.rows[i] for i in which], *no_rope(len(which), self.head_dim))
        return backend.attention(np.ascontiguousarray(self.q[which]), rows, 1, self.scale)

    def exact(self) -> np.ndarray:
        out = np.empty(self.q.shape)
        for i, row in enumerate(self.rows):
            cache, seen = self.caches[row["sequence"]], np.array([*range(row["prefix"]), *row["ancestors"]])
            for head in range(self.q.shape[1] // self.head_dim):
                part = slice(head * self.head_dim, (head + 1) * self.head_dim)
                keys = cache.keys[1, head // self.group, seen // KEY_BLOCK, :, seen % KEY_BLOCK].astype(np.float64)
                scores = keys @ self.q[i, part].astype(np.float64) * self.scale
                weights = np.exp(scores - scores.max())
                out[i, part] = weights @ cache.values[1, head // self.group, seen] / weights.sum()
        return out


cases = st.builds(
    Case,
    seeds,
    st.integers(1, 16),
    st.integers(1, 3),
    kv_heads_counts,
    groups,
    head_dims,
    st.sampled_from([1, 40, 200]),
)


@given(cases, ways, seeds)
def test_a_rows_bits_depend_on_that_row_alone(case, way, seed):
    rows = len(case.rows)
    use(way)
    together = case.run(_native, list(range(rows)))
    order = np.random.default_rng(seed).permutation(rows)
    assert same_bits(case.run(_native, list(order)), together[order])
    use(PLAINEST)
    for row in order[:4]:
        assert same_bits(case.run(_native, [row]), together[row : row + 1])


@given(cases, ways)
def test_error_against_float64(case, way):
    use(way)
    exact = case.exact()
    for backend in (_native, reference):
        assert np.abs(case.run(backend, list(range(len(case.rows)))) - exact).max() <= 3e-5


@given(seeds, ways, kv_heads_counts, groups, head_dims, st.integers(1, 60), st.integers(0, 20))
def test_the_order_of_keys_counts_and_their_slots_do_not(seed, way, kv_heads, group, head_dim, length, in_place):
    """The same keys in a row of slots, and with some of them scattered as a draft tree leaves them."""
    rng = np.random.default_rng(seed)
    keys, values = rng.standard_normal((2, length, 1, kv_heads, head_dim)).astype(np.float32)
    chain, tree = (Cache(1, kv_heads, 8, head_dim) for _ in range(2))
    in_place = min(in_place, length - 1)
    scattered = [int(slot) for slot in in_place + rng.permutation(8 * KEY_BLOCK - in_place)[: length - in_place]]
    for ordinal, slot in enumerate([*range(in_place), *scattered]):
        chain.put(ordinal, keys[ordinal], values[ordinal])
        tree.put(slot, keys[ordinal], values[ordinal])
    use(way)
    q = rng.standard_normal((1, kv_heads * group * head_dim)).astype(np.float32)
    results = []
    for cache, row in [
        (chain, {"sequence": 0, "slot": length - 1, "prefix": length, "ancestors": []}),
        (chain, {"sequence": 0, "slot": length - 1, "prefix": 0, "ancestors": range(length)}),
        (tree, {"sequence": 0, "slot": scattered[-1], "prefix": in_place, "ancestors": scattered}),
    ]:
        rows = rows_of(_native, [cache], [row], *no_rope(1, head_dim))
        results.append(_native.attention(q, rows, 0, 0.3))
    assert np.isfinite(results[0]).all()
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


def test_reference_rows_are_independent():
    case = Case(4, 12, 2, 2, 3, 32, 40)
    together = case.run(reference, list(range(12)))
    assert same_bits(together, np.concatenate([case.run(reference, [row]) for row in range(12)]))


def test_long_contexts():
    case = Case(9, 3, 1, 1, 3, 64, 5000)
    for isa in _native.available_isas():
        use((isa, 2))
        result = case.run(_native, [0, 1, 2])
        assert np.abs(result - case.exact()).max() <= 3e-5


def test_scores_far_apart(backend):
    """A key that outweighs the others by more than the exponential can hold."""
    cache = Cache(1, 1, 1, 2)
    for slot, size in enumerate([300, -300, 0]):
        cache.put(slot, np.full((1, 1, 2), size), np.full((1, 1, 2), size))
    rows = rows_of(backend, [cache], [{"sequence": 0, "slot": 2, "prefix": 3, "ancestors": []}], *no_rope(1, 2))
    assert (backend.attention(np.ones((1, 2), np.float32), rows, 0, 1.0) == 300).all()

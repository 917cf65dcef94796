"""Nothing that a caller passes may crash the process: every call here must raise, with a message."""

import numpy as np
import pytest
from material import Cache, as_bytes, i32, packed, wide

RNG = np.random.default_rng(0)
F = RNG.standard_normal((4, 6)).astype(np.float32)
READ_ONLY = F.copy()
READ_ONLY.flags.writeable = False


def row_arguments(**changes) -> dict:
    cache = Cache(2, 1, 2, 4)
    arguments = {
        "cos": np.ones((3, 2), np.float32),
        "sin": np.ones((3, 2), np.float32),
        "sequence": i32([0, 0, 0]),
        "slot": i32([4, 5, 6]),
        "prefix": i32([5, 5, 5]),
        "ancestors_start": i32([0, 0, 1, 3]),
        "ancestors": i32([5, 5, 6]),
        "keys": [cache.keys],
        "values": [cache.values],
    }
    return arguments | changes


def layer_arguments(backend, **changes) -> dict:
    def matrix(rows, columns):
        return packed(backend, wide(RNG, rows, columns), "f32")

    arguments = {
        "index": 0,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 4,
        "epsilon": 1e-5,
        "scale": 0.5,
        "use_rope": True,
        "attention_norm": np.ones(6, np.float32),
        "q": matrix(8, 6),
        "k": matrix(4, 6),
        "v": matrix(4, 6),
        "o": matrix(6, 8),
        "mlp_norm": np.ones(6, np.float32),
        "gate": matrix(10, 6),
        "up": matrix(10, 6),
        "down": matrix(6, 10),
    }
    return arguments | changes


BAD_ROWS = {
    "cos with another dtype": {"cos": np.ones((3, 2))},
    "cos of too few rows": {"cos": np.ones((2, 2), np.float32)},
    "sin of another shape": {"sin": np.ones((3, 3), np.float32)},
    "int64 slots": {"slot": np.array([4, 5, 6])},
    "strided slots": {"slot": i32(range(6))[::2]},
    "a sequence too many": {"sequence": i32([0, 0, 1])},
    "a negative sequence": {"sequence": i32([0, 0, -1])},
    "a slot outside": {"slot": i32([4, 5, 32])},
    "a negative slot": {"slot": i32([4, 5, -1])},
    "a slot written twice": {"slot": i32([4, 4, 6])},
    "a prefix outside": {"prefix": i32([5, 5, 33])},
    "a negative prefix": {"prefix": i32([5, 5, -1])},
    "a row that doesn't see itself": {"prefix": i32([4, 5, 5])},
    "an ancestor outside": {"ancestors": i32([5, 5, 32])},
    "a negative ancestor": {"ancestors": i32([5, -5, 6])},
    "too few starts": {"ancestors_start": i32([0, 1, 3])},
    "starts from 1": {"ancestors_start": i32([1, 1, 1, 3])},
    "starts to 4": {"ancestors_start": i32([0, 0, 1, 4])},
    "starts that decrease": {"ancestors_start": i32([0, 2, 1, 3])},
    "starts far outside": {"ancestors_start": i32([0, 2**30, 1, 3])},
    "no values": {"values": []},
    "keys of another head_dim": {"keys": [np.ones((2, 1, 2, 6, 16), np.float32)]},
    "keys in blocks of 8": {"keys": [np.ones((2, 1, 4, 4, 8), np.float32)]},
    "keys of four dimensions": {"keys": [np.ones((2, 1, 32, 4), np.float32)]},
    "float64 keys": {"keys": [np.ones((2, 1, 2, 4, 16))]},
    "read-only keys": {"keys": [np.broadcast_to(np.float32(0), (2, 1, 2, 4, 16))]},
    "transposed keys": {"keys": [np.ones((2, 1, 4, 2, 16), np.float32).swapaxes(2, 3)]},
    "values of another capacity": {"values": [np.ones((2, 1, 16, 4), np.float32)]},
    "caches that differ": {
        "keys": [np.ones((2, 1, 2, 4, 16), np.float32), np.ones((3, 1, 2, 4, 16), np.float32)],
        "values": [np.ones((2, 1, 32, 4), np.float32), np.ones((3, 1, 32, 4), np.float32)],
    },
    "keys that are no arrays": {"keys": ["keys"]},
}


@pytest.mark.parametrize("changes", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_rows(backend, changes):
    backend.Rows(**row_arguments())
    with pytest.raises(ValueError, match=r"\w+ .*\w"):
        backend.Rows(**row_arguments(**changes))


BAD_LAYERS = {
    "a negative index": {"index": -1},
    "no heads": {"heads": 0},
    "heads that don't divide": {"kv_heads": 3},
    "an odd head_dim": {"head_dim": 3},
    "a short norm": {"attention_norm": np.ones(5, np.float32)},
    "a float64 norm": {"mlp_norm": np.ones(6)},
    "a strided norm": {"mlp_norm": np.ones(12, np.float32)[::2]},
    "a short bias": {"q_bias": np.ones(7, np.float32)},
    "a long head norm": {"k_norm": np.ones(8, np.float32)},
    "an array for a weight": {"q": F},
    "None for a weight": {"down": None},
}


@pytest.mark.parametrize("changes", BAD_LAYERS.values(), ids=BAD_LAYERS.keys())
def test_layer(backend, changes):
    backend.Layer(**layer_arguments(backend))
    with pytest.raises((ValueError, TypeError), match=r"\w+ .*\w"):
        backend.Layer(**layer_arguments(backend, **changes))


@pytest.mark.parametrize("name", ["q", "k", "v", "o", "gate", "up", "down"])
def test_layer_with_a_matrix_of_another_shape(backend, name):
    arguments = layer_arguments(backend)
    for rows, columns in [(1, 0), (0, 1)]:
        shape = arguments[name].out_features + rows, arguments[name].in_features + columns
        if (name, columns) in (("q", 1), ("gate", 0)):
            continue  # these two set the sizes that the others must have
        with pytest.raises(ValueError, match="must have shape"):
            backend.Layer(**layer_arguments(backend, **{name: packed(backend, wide(RNG, *shape), "f32")}))


def test_run_layers(backend):
    layer = backend.Layer(**layer_arguments(backend))
    rows = backend.Rows(**row_arguments())
    x = np.zeros((3, 6), np.float32)
    backend.run_layers(x, [layer], rows)
    other_head_dim = Cache(2, 1, 2, 6)
    bad = [
        (x[:2], [layer], rows),
        (np.zeros((3, 7), np.float32), [layer], rows),
        (np.zeros((3, 6)), [layer], rows),
        (np.zeros((3, 12), np.float32)[:, ::2], [layer], rows),
        (x, [], rows),
        (x, [layer, "layer"], rows),
        (x, [backend.Layer(**layer_arguments(backend, index=2))], rows),
        (
            x,
            [layer],
            backend.Rows(
                **row_arguments(
                    cos=np.ones((3, 3), np.float32),
                    sin=np.ones((3, 3), np.float32),
                    keys=[other_head_dim.keys],
                    values=[other_head_dim.values],
                )
            ),
        ),
    ]
    for arguments in bad:
        with pytest.raises(ValueError, match=r"\w+ .*\w"):
            backend.run_layers(*arguments)
    x.flags.writeable = False
    with pytest.raises((TypeError, ValueError)):
        backend.run_layers(x, [layer], rows)


def test_attention(backend):
    rows = backend.Rows(**row_arguments())
    q = np.ones((3, 8), np.float32)
    backend.attention(q, rows, 1, 1.0)
    for arguments in [(q[:2], rows, 0), (q[:, :6].copy(), rows, 0), (q, rows, 2), (q, rows, -1), (q[:, :0], rows, 0)]:
        with pytest.raises(ValueError, match=r"\w+ .*\w"):
            backend.attention(*arguments, 1.0)


def test_pack_and_unpack(backend):
    data = as_bytes(F)
    backend.pack(data, "F32", 4, 6, "bf16")
    order = i32(range(4))
    for arguments in [
        (data, "Q2_K", 4, 6, "f32"),
        (data, "F32", 4, 6, "int7"),
        (data, "F32", 4, 7, "f32"),
        (data[:-1], "F32", 4, 6, "f32"),
        (data, "F32", 0, 6, "f32"),
        (data, "F32", -4, -6, "f32"),
        (data, "F32", 2**40, 2**40, "f32"),
        (data, "Q8_0", 4, 6, "f32"),
        (data[::2], "F32", 2, 6, "f32"),
        (F, "F32", 4, 6, "f32"),
        (data, "F32", 4, 6, "f32", order[:3]),
        (data, "F32", 4, 6, "f32", order + 1),
        (data, "F32", 4, 6, "f32", order - 1),
        (data, "F32", 4, 6, "f32", order.astype(np.int64)),
    ]:
        with pytest.raises(ValueError, match=r"\w+ .*\w"):
            backend.pack(*arguments)
    for arguments in [(data, "Q2_K", 4, 6), (data, "F32", 4, 5), (data, "F16", 4, 6), (data, "Q4_K", 4, 6)]:
        with pytest.raises(ValueError, match=r"\w+ .*\w"):
            backend.unpack(*arguments)


def test_the_others(backend):
    weight = packed(backend, F, "f32")
    line, tokens = np.ones(6, np.float32), i32([0, 3])
    backend.linear(F, weight, np.ones(4, np.float32))
    cube, angle = np.ones((4, 2, 6), np.float32), np.ones((4, 3), np.float32)
    backend.rope(cube, angle, angle)
    for function, *arguments in [
        (backend.linear, F[:, :5], weight),
        (backend.linear, line, weight),
        (backend.linear, F.astype(np.float64), weight),
        (backend.linear, F.T, weight),
        (backend.linear, F, weight, np.ones(5, np.float32)),
        (backend.embed, weight, tokens + 1),
        (backend.embed, weight, tokens - 1),
        (backend.embed, weight, tokens.astype(np.int64)),
        (backend.embed, weight, tokens[None]),
        (backend.rms_norm, F, line[:5], 1e-5),
        (backend.rms_norm, F[:, ::2], line[:3], 1e-5),
        (backend.rms_norm, F[0, 0, None].reshape(()), line[:1], 1e-5),
        (backend.rope, cube[:, :, :5].copy(), angle, angle),
        (backend.rope, cube, angle[:, :2].copy(), angle),
        (backend.rope, cube, angle, angle[:3]),
        (backend.rope, F, angle, angle),
        (backend.swiglu, F, F[:3]),
        (backend.swiglu, F, F.astype(np.float16)),
        (backend.set_threads, 0),
        (backend.set_threads, 10**6),
        (backend.use_isa, "mmx"),
    ]:
        with pytest.raises(ValueError, match=r"\w+ .*\w"):
            function(*arguments)
    with pytest.raises(TypeError):
        backend.linear("x", weight)
    with pytest.raises(TypeError):
        backend.linear(F.tolist(), weight)


def test_later_changes_to_the_arrays_change_nothing(backend):
    """Rows keeps what it checked: a slot moved outside afterwards must not be followed."""
    arguments = row_arguments()
    rows = backend.Rows(**arguments)
    for name in ("slot", "prefix", "ancestors", "sequence", "ancestors_start"):
        arguments[name][:] = 2**30
    backend.run_layers(np.zeros((3, 6), np.float32), [backend.Layer(**layer_arguments(backend))], rows)

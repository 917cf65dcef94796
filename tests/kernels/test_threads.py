import os
import subprocess
import sys
import threading

import numpy as np
from material import packed, same_bits, wide

from slipstream.kernels import _native


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs code with these variables; those of ours that the tests themselves run with are left out."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_calls_from_several_threads():
    rng = np.random.default_rng(0)
    weight = packed(_native, wide(rng, 300, 200), "bf16")
    inputs = [wide(rng, rows, 200) for rows in range(1, 9)]
    expected = [_native.linear(x, weight) for x in inputs]
    wrong = []

    def work(index: int) -> None:
        for _ in range(50):
            if not same_bits(_native.linear(inputs[index], weight), expected[index]):
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for worker in workers:
        worker.start()
    for count in (1, 3, 2):
        _native.set_threads(count)
    for worker in workers:
        worker.join()
    assert not wrong


def test_number_of_threads():
    for count in (1, 3, 5, 2):
        _native.set_threads(count)
        assert _native.threads() == count


def test_other_python_threads_go_on_meanwhile():
    """The interpreter's lock is free while the kernels work."""
    rng = np.random.default_rng(0)
    weight = packed(_native, wide(rng, 4000, 2000), "f32")
    x = wide(rng, 300, 2000)
    done = threading.Event()
    ticks = 0

    def work() -> None:
        _native.linear(x, weight)
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    while not done.wait(0.001):
        ticks += 1
    worker.join()
    assert ticks > 0


FORK = """
import os
import warnings
import numpy as np
from slipstream import kernels
warnings.simplefilter("ignore")
kernels.set_threads(3)
weight = kernels.pack(np.ones(4 * 512 * 64, np.uint8), "F32", 512, 64, "f32")
x = np.ones((5, 64), np.float32)
before = kernels.linear(x, weight)
child = os.fork()
same = np.array_equal(kernels.linear(x, weight), before) and kernels.threads() == 3
if child == 0:
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0
assert same
"""


def test_the_kernels_work_in_a_forked_child():
    assert run_python(FORK).returncode == 0


SHOW = "from slipstream import kernels; print(kernels.BACKEND, kernels.isa())"


def test_the_environment_chooses():
    for isa in _native.available_isas():
        assert run_python(SHOW, SLIPSTREAM_ISA=isa).stdout == f"native {isa}\n"
    reference = run_python(SHOW, SLIPSTREAM_KERNELS="reference")
    assert reference.stdout == "reference reference\n"


def test_a_wrong_environment_is_an_error():
    for environment in ({"SLIPSTREAM_KERNELS": "fast"}, {"SLIPSTREAM_ISA": "mmx"}):
        result = run_python(SHOW, **environment)
        assert result.returncode != 0
        assert next(iter(environment.values())) in result.stderr.splitlines()[-1]

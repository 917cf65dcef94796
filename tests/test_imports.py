"""What importing the package costs."""

import subprocess
import sys


def test_no_torch_and_nothing_slow_in_the_core() -> None:
    code = "import sys, slipstream, slipstream.cli; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "huggingface_hub", "httpx2", "scipy", "pandas"} & set(loaded)

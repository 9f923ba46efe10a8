#!/usr/bin/env bash
# On a machine with a GPU: what the update computes there, and then what it costs.
# Needs the package's test and examples extras, and a JAX and a torch that see the GPU.
#
#   bash examples/benchmarks/on_a_gpu.sh        # some ten minutes; started again, it goes on
#
# The records are examples/benchmarks/results/step_time/{jax,torch}-gpu.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
export TF_CPP_MIN_LOG_LEVEL=3
for backend in jax torch; do
  KERAS_BACKEND=$backend python -m pytest --quiet \
    tests/test_norm_correction.py tests/test_exactness.py tests/test_soundness.py tests/test_bites.py
done
for backend in jax torch; do
  KERAS_BACKEND=$backend python -m examples.benchmarks.step_time --rounds 11 --skip fit scaling
done

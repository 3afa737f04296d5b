#!/usr/bin/env bash
# Build, GPU tests, compute-sanitizer and every GPU benchmark in one bounded run (about twenty minutes; --quick: three).
#
#   bash examples/bench/h200.sh [--quick] [--limit SECONDS] [--only STEP[,STEP…]] [--python PYTHON]
#
# Steps: build test sanitize kernel product residues single paper spread batches arithmetic import tensorcore, and tune (only by --only). Needs
# nvcc, and the build requirements of pyproject.toml in PYTHON's environment (nothing is downloaded). Lines go to $OUT/h200.jsonl, logs to $OUT/*.log;
# without $OUT, to examples/bench/results/. A step that fails or runs out of time does not stop the next; the last lines
# printed are a summary. Exit status: the number of failed steps.
set -u
cd "$(dirname "$0")/../.."

quick="" limit=1500 only="" python=python3
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=--quick; limit=240 ;;
    --limit) limit=$2; shift ;;
    --only) only=$2; shift ;;
    --python) python=$2; shift ;;
    *) echo "h200.sh: $1 came; --quick, --limit, --only or --python was wanted" >&2; exit 2 ;;
  esac
  shift
done

out=${OUT:-examples/bench/results}
mkdir -p "$out"
lines=$out/h200.jsonl
export PYTHONUNBUFFERED=1
if [ -z "${BENCH_COMMIT:-}" ]; then
  BENCH_COMMIT=$(git rev-parse --short=10 HEAD 2>/dev/null || echo unknown)
fi
export BENCH_COMMIT
failed=0
summary=""

left() { echo $((limit - SECONDS)); }

# step NAME SECONDS LOG COMMAND…: run with a time limit, log it, remember how it ended
step() {
  local name=$1 most=$2 log=$3 start=$SECONDS rc
  shift 3
  if [ -n "$only" ] && [[ ",$only," != *",$name,"* ]]; then return; fi
  if [ "$(left)" -lt 8 ]; then summary+="$name: no time left"$'\n'; failed=$((failed + 1)); return; fi
  [ "$most" -gt "$(left)" ] && most=$(left)
  echo "== $name (at most $most s)"
  timeout -k 5 "$most" "$@" >>"$out/$log" 2>&1
  rc=$?
  [ $rc -ne 0 ] && failed=$((failed + 1)) && tail -n 15 "$out/$log" | cut -c1-300
  summary+="$name: exit $rc, $((SECONDS - start)) s"$'\n'
}

bench() { # bench NAME SECONDS SCRIPT
  step "$1" "$2" bench.log "$python" "examples/bench/$3" $quick --out "$lines" --limit "$(($2 - 15))"
}

sanitizer() { # sanitizer TOOL: only our kernels are instrumented; compiled programs come from the plain run's cache
  step sanitize 60 sanitizer.log env XLA_PYTHON_CLIENT_PREALLOCATE=false \
    compute-sanitizer --tool "$1" --target-processes all --error-exitcode 9 --kernel-name kns=jaxmd \
    "$python" examples/bench/sanitizer_case.py
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm --format=csv,noheader 2>/dev/null
step build 240 build.log env JAXMD_CUDA=on CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" \
  "$python" -m pip install -v --no-build-isolation --no-deps --force-reinstall .
step build 30 build.log "$python" -P -m jaxmd
step test 240 test.log "$python" -P -m pytest -q -m gpu -p no:cacheprovider --maxfail=20 tests
bench kernel 30 dmma_kernel.py
if [ -n "$only" ]; then # the kernel's variants, only when asked for
  step tune 60 tune.log bash -c 'nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I ffi \
    examples/bench/kernels/sliced_matmul_bench.cu -lcublas -o /tmp/sliced_matmul_bench && /tmp/sliced_matmul_bench'
fi
bench product 90 product.py
bench residues 60 residue_kernels.py
bench residues 260 residues.py
bench single 75 single.py
bench engines 40 engines.py
bench paper 75 paper_tables.py
bench spread 40 exponent_spread.py
bench batches 40 small_batches.py
bench arithmetic 40 arithmetic.py
bench import 30 import_time.py
bench tensorcore 60 tensorcore.py
# The same flags in every step: the tools may crash where XLA compiles, so programs have to come from the cache.
export JAX_COMPILATION_CACHE_DIR=$(mktemp -d) JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
export XLA_FLAGS=--xla_gpu_enable_command_buffer=
step sanitize 75 sanitizer.log "$python" examples/bench/sanitizer_case.py
sanitizer memcheck
sanitizer racecheck
# initcheck has to see what XLA's kernels write too, so it instruments them all. Of the counter of a process's first
# loop, which XLA copies from a constant, it says at every read that nothing wrote it: reports about our kernels count.
step sanitize 100 sanitizer.log env XLA_PYTHON_CLIENT_PREALLOCATE=false \
  compute-sanitizer --tool initcheck --target-processes all --show-backtrace no --print-limit 100000 \
  --log-file "$out/initcheck.log" "$python" examples/bench/sanitizer_case.py
step sanitize 10 sanitizer.log bash -c '! grep -c "at .*jaxmd" "$0" && grep "ERROR SUMMARY" "$0"' "$out/initcheck.log"

echo "== results"
tail -n 3 "$out/test.log" 2>/dev/null | cut -c1-200
grep -hE "ERROR SUMMARY|RACECHECK SUMMARY|largest error" "$out/sanitizer.log" 2>/dev/null
"$python" - "$lines" <<'PY'
import json, os, sys
if os.path.exists(sys.argv[1]):
    for line in open(sys.argv[1]):
        r = json.loads(line)
        keep = ("operation", "engine", "method", "phi", "limbs", "slices", "batch", "shape", "seconds", "T", "double_TF",
                "share_of_peak", "share_outside_kernel", "over_copy", "error", "TFLOPS", "error_units", "error_relative")
        print(" ".join(f"{k}={r[k]}" if k not in ("operation", "engine", "method") else str(r[k]) for k in keep if r.get(k) is not None))
PY
echo "== summary"
printf '%s' "$summary"
exit $failed

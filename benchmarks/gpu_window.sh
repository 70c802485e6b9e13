#!/usr/bin/env bash
# gpu_window.sh N [--rehearse]: window N of GPU time, 1 to 7, on this machine's GPU; benchmarks/GPU.md
# says what each does. It ends within WINDOW_S seconds (570) and leaves one archive, $OUT/gpu-window-N.tar.gz, also when
# something failed or hung. The same command again continues. --rehearse runs the window on the CPU at a tiny size.
# GPU_PYTHON: a Python with torch (python3). OUT: a folder for the archive (this one). REHEARSAL: of a rehearsal's results.
set -uo pipefail
usage='usage: gpu_window.sh N [--rehearse]'
window=${1:?$usage} rehearse=${2:-}
[[ $window =~ ^[1-7]$ && ( -z $rehearse || $rehearse == --rehearse ) && $# -le 2 ]] || { echo "$usage" >&2; exit 2; }
cd "$(dirname "$0")/.." || exit 2
python=${GPU_PYTHON:-python3} limit=${WINDOW_S:-570} out=${OUT:-$PWD}
results=gpu-results options=()
if [[ -n $rehearse ]]; then
  results=${REHEARSAL:-gpu-rehearsal} options=(--rehearse --out "$results")
fi
mkdir -p "$results" "$out"

pack() {
  nvidia-smi -q >"$results/nvidia-smi-window-$window.txt" 2>/dev/null || rm -f "$results/nvidia-smi-window-$window.txt"
  tar -czf "$out/gpu-window-$window.tar.gz" --exclude=lock --exclude=cache --exclude='*.safetensors' -C "$(dirname "$results")" "$(basename "$results")"
  du -h "$out/gpu-window-$window.tar.gz"
}
trap pack EXIT

# Wheels are for Python 3.12 and leave out what such a machine has: `make gpu-carry` fetched them.
if compgen -G 'gpu-carry/wheels/*.whl' >/dev/null && "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))'; then
  site=$(mktemp -d)
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --disable-pip-version-check --target "$site" \
    gpu-carry/wheels/*.whl || exit
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} PATH=$site/bin:$PATH
fi
timeout --signal=INT --kill-after=10 $((limit - SECONDS - 15)) "$python" -m benchmarks.gpu --window "$window" \
  --limit $((limit - SECONDS - 20)) ${options[@]+"${options[@]}"}

#!/usr/bin/env bash
# Measures the server that KUBECONFIG names; without one, a cluster that is started for it.
# ONLY=create,list chooses benchmarks, SCALE=10 divides their sizes.
set -euo pipefail
cd "$(dirname "$0")/.."
go build -ldflags '-s -w' -o bin/bench ./test/bench
if [ -n "${KUBECONFIG:-}" ]; then
  exec bin/bench -kubeconfig "$KUBECONFIG" -only "${ONLY:-}" -scale "${SCALE:-1}"
fi
dir=$(mktemp -d)
trap 'bin/sampan down --purge --dir="$dir/cluster"; rm -rf "$dir"' EXIT
bin/sampan up --dir="$dir/cluster"
echo
echo "memory at rest (PSS), after 10 s:"
sleep 10
scripts/memory.sh "$dir/cluster"
echo
bin/bench -kubeconfig "$dir/cluster/kubeconfig" -only "${ONLY:-}" -scale "${SCALE:-1}"

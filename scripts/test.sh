#!/usr/bin/env bash
# Runs the tests: everything, or "unit", "e2e" or "soak".
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
export SAMPAN_BIN=$PWD/bin

unit=(./proto/... ./services/{internal,apiserver,scheduler,controller-manager,node-agent,proxy,sampan}/... ./test/...)
if [ "$what" = all ] || [ "$what" = unit ]; then
  go vet "${unit[@]}" ./services/e2e/...
  # One package at a time where tests use root's view of the machine: namespaces, cgroups, mounts.
  go test -p 2 -timeout 10m "${unit[@]}"
fi
if [ "$what" = all ] || [ "$what" = e2e ]; then
  go test -p 1 -count 1 -timeout 15m ./services/e2e/...
fi
if [ "$what" = soak ]; then
  go test -p 1 -count 1 -v -timeout 0 ./services/e2e/robustness/...
fi

#!/usr/bin/env bash
# Runs the tests: everything, or "unit", "e2e", "conformance" or "soak".
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
export SAMPAN_BIN=$PWD/bin

unit=(./proto/... ./services/{internal,apiserver,apiserver/internal/storage/upstreamtest,scheduler,controller-manager,node-agent,proxy,sampan}/... ./test/...)
if [ "$what" = all ] || [ "$what" = unit ]; then
  go vet "${unit[@]}" ./services/e2e/...
  # One package at a time where tests use root's view of the machine: namespaces, cgroups, mounts.
  go test -p 2 -timeout 10m "${unit[@]}"
fi
if [ "$what" = all ] || [ "$what" = e2e ]; then
  go test -p 1 -count 1 -parallel 6 -timeout 15m ./services/e2e/...
fi
if [ "$what" = conformance ]; then
  # The count is the last line that the tests print; what go test adds behind it is left out.
  set +e
  (cd services/e2e/conformance && go test -count 1 -parallel 6 -timeout 30m) | grep -v -E '^(ok|PASS|FAIL)\b'
  exit "${PIPESTATUS[0]}"
fi
if [ "$what" = soak ]; then
  SAMPAN_CYCLES=200 go test -count 1 -v -timeout 0 -run 'AgentKilledUnderChurn' ./services/node-agent/app
  go test -p 1 -count 1 -v -timeout 0 ./services/e2e/robustness/...
fi

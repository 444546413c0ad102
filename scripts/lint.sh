#!/usr/bin/env bash
# Lints every module. golangci-lint is built from its module, pinned in scripts/tools/lint.
set -euo pipefail
cd "$(dirname "$0")/.."
(cd scripts/tools/lint && GOWORK=off go build -o "$OLDPWD/bin/golangci-lint" github.com/golangci/golangci-lint/v2/cmd/golangci-lint)
for module in proto services/{internal,apiserver,apiserver/internal/storage/upstreamtest,scheduler,controller-manager,node-agent,proxy,sampan,e2e} test; do
  echo "lint $module"
  (cd "$module" && "$OLDPWD/bin/golangci-lint" run --config "$OLDPWD/.golangci.yml" ./...)
done

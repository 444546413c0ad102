#!/usr/bin/env bash
# Checks that generated files, formatting, pinned versions and the allowed imports have not drifted.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0

for module in proto services/{internal,apiserver,apiserver/internal/storage/upstreamtest,scheduler,controller-manager,node-agent,proxy,sampan,e2e} test; do
  (cd "$module" && GOWORK=off go build -o /dev/null ./...) || { echo "$module does not build without the workspace" >&2; failed=1; }
done

unformatted=$(gofmt -l proto services test deploy scripts)
[ -z "$unformatted" ] || { echo "not formatted: $unformatted" >&2; failed=1; }

scripts/check-versions.sh || failed=1
scripts/check-imports.sh || failed=1

before=$(git status --porcelain)
scripts/generate.sh >/dev/null
[ "$before" = "$(git status --porcelain)" ] || { echo "generated files differ: run make generate and commit" >&2; git status --short >&2; failed=1; }
exit $failed

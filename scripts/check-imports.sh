#!/usr/bin/env bash
# Upstream's server libraries may be imported directly only where they are leaves: schemas, CEL, encryption, proxying. The module that runs
# upstream's suites against the store imports what those need.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
while IFS=: read -r file _ path; do
  path=${path//\"/}
  case $path in
    k8s.io/apiserver/pkg/cel | k8s.io/apiserver/pkg/cel/* | k8s.io/apiserver/pkg/authorization/authorizer | k8s.io/apiserver/pkg/authentication/user | k8s.io/apiserver/pkg/admission/plugin/cel | k8s.io/apiserver/pkg/admission/plugin/cel/* | k8s.io/apiserver/pkg/storage/value/encrypt/* | \
      k8s.io/apiserver/pkg/util/proxy | k8s.io/apiserver/pkg/apis/* | k8s.io/apiserver/pkg/audit/policy) ;;
    *) echo "check-imports: $file imports $path" >&2; failed=1 ;;
  esac
done < <(git grep -n -o -E '"k8s\.io/(kubernetes|apiserver)(/[^"]*)?"' -- '*.go' ':!services/apiserver/internal/storage/upstreamtest' || true)
exit $failed

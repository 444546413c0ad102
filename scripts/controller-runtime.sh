#!/usr/bin/env bash
# Runs controller-runtime's own integration suites, unchanged from its module, against the API server from bin/envtest (or
# KUBEBUILDER_ASSETS), and prints per suite how many of its specs pass. Arguments name other suites, as paths below pkg.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v0.25.2
export KUBEBUILDER_ASSETS=${KUBEBUILDER_ASSETS:-$PWD/bin/envtest}
if [ ! -x "$KUBEBUILDER_ASSETS/kube-apiserver" ]; then
  echo "controller-runtime: $KUBEBUILDER_ASSETS has no kube-apiserver; run make envtest-assets" >&2
  exit 1
fi
suites=("$@")
[ $# -gt 0 ] || suites=(
  builder cache client client/apiutil cluster controller controller/controllerutil envtest handler internal/controller
  internal/recorder internal/testing/controlplane manager manager/internal/integration metrics/filters reconcile source webhook
)
work=$(mktemp -d /tmp/sampan-controller-runtime.XXXXXX)
trap 'rm -rf "$work"' EXIT
source=$(cd "$work" && GOWORK=off go mod download -json sigs.k8s.io/controller-runtime@$version | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
cp -r "$source" "$work/module"
chmod -R u+w "$work/module"
find "$work/module" -name '*.sh' -exec chmod +x {} + # a module's archive has no modes
cd "$work/module"
export GOWORK=off
failed=0
for suite in "${suites[@]}"; do
  log=$work/$(tr / - <<<"$suite").log
  # What is left out downloads a server of Kubernetes 1.24 or so, to have one without aggregated discovery.
  if ! go test -count 1 -v -timeout 20m -skip '.*/aggregatedDiscovery=false' "./pkg/$suite" >"$log" 2>&1; then
    failed=1
    [ -z "${LOGS:-}" ] || cp "$log" "$LOGS/"
  fi
  # Ginkgo ends with "FAIL! -- 60 Passed | 1 Failed | 0 Pending | 2 Skipped".
  result=$(sed 's/\x1b\[[0-9;]*m//g' "$log" | grep -oE '(SUCCESS!|FAIL!).*Skipped' | tail -1) || true
  # Packages without specs have plain tests.
  if [ -z "$result" ] || [[ $result == *"-- 0 Passed | 0 Failed"* ]]; then
    result="$(grep -c '^--- PASS' "$log" || true) Passed | $(grep -c '^--- FAIL' "$log" || true) Failed, plain tests"
  fi
  printf '%-32s %s\n' "$suite" "$result"
done
exit $failed

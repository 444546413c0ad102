#!/usr/bin/env bash
# All k8s.io modules that are released together are at one version in every go.mod, and what must not move has not.
set -euo pipefail
cd "$(dirname "$0")/.."
kubernetes=v0.37.2
failed=0
complain() { echo "check-versions: $*" >&2; failed=1; }

while IFS=: read -r file _ module version; do
  case $module in
    k8s.io/klog/v2 | k8s.io/utils | k8s.io/gengo/v2) ;;
    k8s.io/kube-openapi) [ "$version" = v0.0.0-20260721132016-d427ff9ee9ad ] || complain "$file: $module $version" ;;
    *) [ "$version" = $kubernetes ] || complain "$file: $module is at $version, not $kubernetes" ;;
  esac
done < <(git ls-files '*go.mod' | xargs awk '/^\t?(require )?k8s\.io\//{m=$1=="require"?$2:$1; v=$1=="require"?$3:$2; if (v ~ /^v/) print FILENAME":"FNR":"m":"v}')

while IFS=: read -r file version; do
  [ "$version" = v0.29.2 ] || complain "$file: github.com/google/cel-go is at $version, not v0.29.2"
done < <(git ls-files '*go.mod' | xargs awk '/github\.com\/google\/cel-go /{print FILENAME":"$2}')
exit $failed

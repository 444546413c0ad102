#!/usr/bin/env bash
# Runs every fuzz target for a time each (default 30s), of all modules or of the packages given, and says how many inputs each tried.
#   scripts/fuzz.sh [TIME [PACKAGE...]]
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-30s}
shift || true
packages=("$@")
[ $# -gt 0 ] || packages=(./proto/... ./services/{internal,apiserver,scheduler,controller-manager,node-agent,proxy,sampan}/...)
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
while read -r package target; do
  if go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" >"$log" 2>&1; then
    # The last line of progress: "fuzz: elapsed: 30s, execs: 123456 (4100/sec), new interesting: 7 (total: 23)".
    printf '%-60s %s\n' "${package#github.com/sampan-io/sampan/} $target" "$(grep -o 'execs: [0-9]*' "$log" | tail -1)"
  else
    failed=1
    printf '%-60s %s\n' "${package#github.com/sampan-io/sampan/} $target" FAILED
    cat "$log"
  fi
done < <(go list -f '{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}{{"\n"}}{{end}}' "${packages[@]}" |
  while read -r package file; do
    [ -n "$package" ] || continue
    grep -oE '^func Fuzz[A-Za-z0-9_]*' "$file" | sed "s|func |$package |" || true
  done)
exit $failed

#!/usr/bin/env bash
# Runs the CRI validation suite, built from its module, against bin/criserver. Arguments are passed on: -focus REGEX.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v busybox >/dev/null || ! command -v conmon >/dev/null; then
  echo "critest: busybox or conmon is missing; on Debian: apt-get install busybox-static conmon" >&2
  exit 1
fi
root=$PWD
cd scripts/critest
export GOWORK=off
go build -o "$root/bin/critestrun" .
# Here, for the run has a network of its own, without a way out.
go test -c -o "$root/bin/critest" sigs.k8s.io/cri-tools/cmd/critest
go build -o "$root/bin/crictl" sigs.k8s.io/cri-tools/cmd/crictl
exec "$root/bin/critestrun" -bin "$root/bin" -skips skips.txt "$@"

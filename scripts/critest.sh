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
exec "$root/bin/critestrun" -bin "$root/bin" -skips skips.txt "$@"

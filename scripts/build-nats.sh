#!/bin/sh
# Builds the NATS server, at the version of the one in the API server (services/apiserver/go.mod), into bin/nats-server.
# Usage: scripts/build-nats.sh [output file]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/bin/nats-server}
case $out in /*) ;; *) out=$PWD/$out ;; esac

cd "$root/services/apiserver"
mkdir -p "$(dirname "$out")"
CGO_ENABLED=0 GOWORK=off go build -ldflags '-s -w' -o "$out" github.com/nats-io/nats-server/v2

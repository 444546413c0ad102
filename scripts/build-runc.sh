#!/bin/sh
# Builds runc, at the version services/node-agent/go.mod pins, with seccomp into bin/runc.
# Usage: scripts/build-runc.sh [output file]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/bin/runc}
case $out in /*) ;; *) out=$PWD/$out ;; esac

if ! command -v pkg-config >/dev/null || ! pkg-config --exists libseccomp; then
	echo "build-runc: libseccomp's headers are missing; on Debian: apt-get install libseccomp-dev pkg-config gcc" >&2
	exit 1
fi

cd "$root/services/node-agent"
version=$(GOWORK=off go list -m -f '{{.Version}}' github.com/opencontainers/runc)
mkdir -p "$(dirname "$out")"
CGO_ENABLED=1 GOWORK=off go build -tags seccomp \
	-ldflags "-s -w -X main.version=${version#v}" \
	-o "$out" github.com/opencontainers/runc

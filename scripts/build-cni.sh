#!/bin/sh
# Builds the CNI plugins the node agent uses, at the version services/node-agent/go.mod pins, into bin/cni/.
# Usage: scripts/build-cni.sh [output directory]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/bin/cni}
case $out in /*) ;; *) out=$PWD/$out ;; esac

cd "$root/services/node-agent"
module=github.com/containernetworking/plugins
version=$(GOWORK=off go list -m -f '{{.Version}}' "$module")
mkdir -p "$out"
for plugin in main/bridge main/loopback ipam/host-local meta/portmap; do
	CGO_ENABLED=0 GOWORK=off go build \
		-ldflags "-s -w -X $module/pkg/utils/buildversion.BuildVersion=$version" \
		-o "$out/${plugin#*/}" "$module/plugins/$plugin"
done

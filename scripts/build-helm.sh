#!/usr/bin/env bash
# Builds Helm 4 as bin/helm and Helm 3 as bin/helm3, each from its own module.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p bin
(cd test/helm4 && GOWORK=off go build -ldflags '-s -w' -o ../../bin/helm helm.sh/helm/v4/cmd/helm)
(cd test/helm3 && GOWORK=off go build -ldflags '-s -w' -o ../../bin/helm3 helm.sh/helm/v3/cmd/helm)

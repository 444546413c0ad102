#!/usr/bin/env bash
# Fills bin/envtest (or the directory given), a KUBEBUILDER_ASSETS folder: kube-apiserver, etcd and kubectl as controller-runtime's envtest starts
# them. The API server and kubectl are taken from bin, or from SAMPAN_BIN.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/../bin/envtest}")
cd "$(dirname "$0")/.."
bin=${SAMPAN_BIN:-bin}
mkdir -p "$out"
for name in kube-apiserver etcd; do
  go build -ldflags '-s -w' -o "$out/$name" "./test/envtest/$name"
done
# A server that runs from the folder keeps its file: the new one takes the name.
copy() { cp "$1" "$2.new" && mv "$2.new" "$2"; }
copy "$bin/apiserver" "$out/sampan-apiserver"
copy "$bin/kubectl" "$out/kubectl"
echo "export KUBEBUILDER_ASSETS=$out"

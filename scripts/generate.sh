#!/usr/bin/env bash
# Regenerates what is generated and committed. `make verify` runs it and finds no difference.
set -euo pipefail
cd "$(dirname "$0")/tools"
export GOWORK=off

packages=(k8s.io/apimachinery/pkg/{apis/meta/v1,runtime,version,api/resource,util/intstr}
  k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1 k8s.io/kube-aggregator/pkg/apis/apiregistration/v1 k8s.io/metrics/pkg/apis/metrics/v1{,beta1}
  k8s.io/api/scheduling/v1alpha3)
for group in core apps batch autoscaling networking discovery events policy rbac authentication authorization certificates coordination \
  node scheduling storage storagemigration admissionregistration flowcontrol resource; do
  packages+=("k8s.io/api/$group/v1")
done
packages+=(k8s.io/api/autoscaling/v2 k8s.io/api/apidiscovery/v2)

definitions=openapi/definitions
mkdir -p "$definitions"
trap 'rm -f "$definitions"/zz_*' EXIT
report=$(mktemp)
go tool openapi-gen --output-dir "$definitions" --output-pkg github.com/sampan-io/sampan/scripts/tools/openapi/definitions \
  --output-file zz_generated.openapi.go --go-header-file /dev/null --report-filename "$report" "${packages[@]}"
rm -f "$report"
go run -tags openapi ./openapi ../../services/apiserver/internal/openapi/data

# Validation by the rules that the types declare. The generated registration is called by name, not by init.
bin=$(mktemp -d)
trap 'rm -rf "$bin"; rm -f "$definitions"/zz_*' EXIT
go build -o "$bin/validation-gen" k8s.io/code-generator/cmd/validation-gen
(
  cd ../../services/apiserver
  "$bin/validation-gen" --output-file zz_generated.validations.go --go-header-file /dev/null \
    --readonly-pkg k8s.io/apimachinery/pkg/api/resource --readonly-pkg k8s.io/apimachinery/pkg/runtime --readonly-pkg k8s.io/apimachinery/pkg/types \
    --readonly-pkg k8s.io/apimachinery/pkg/util/intstr --readonly-pkg time --readonly-pkg k8s.io/api/scheduling/v1alpha3 \
    ./internal/registry/declared/...
  sed -i '/^func init() { localSchemeBuilder/d' internal/registry/declared/*/zz_generated.validations.go
  gofmt -w internal/registry/declared/*/zz_generated.validations.go
)

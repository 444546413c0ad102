//go:build suite

package main

// The suite is built as a test of its own package; these keep its modules required.
import (
	_ "github.com/onsi/ginkgo/v2"
	_ "github.com/onsi/gomega"

	_ "sigs.k8s.io/cri-tools/pkg/benchmark"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)

package algorithm_test

import "k8s.io/apimachinery/pkg/api/resource"

func quantity(text string) *resource.Quantity {
	q := resource.MustParse(text)
	return &q
}

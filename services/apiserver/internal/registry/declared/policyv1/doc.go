// Package policyv1 has the validation that the types of k8s.io/api/policy/v1 declare,
// made by validation-gen.
//
// +k8s:validation-gen=TypesWithField=TypeMeta
// +k8s:validation-gen-input=k8s.io/api/policy/v1
package policyv1

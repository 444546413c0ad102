package crd

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	apiservervalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// warnings are about formats that are not known, and sets that server-side apply
// and CEL do not support: those that are new.
func warnings(_ context.Context, obj, old *apiextensionsv1.CustomResourceDefinition) []string {
	now := schemaWarnings(obj)
	if old == nil {
		return now
	}
	before := schemaWarnings(old)
	return slices.DeleteFunc(now, func(warning string) bool { return slices.Contains(before, warning) })
}

func schemaWarnings(obj *apiextensionsv1.CustomResourceDefinition) []string {
	in, errs := internal(obj)
	if len(errs) > 0 {
		return nil
	}
	var out []string
	add := func(warning string) {
		if !slices.Contains(out, warning) {
			out = append(out, warning)
		}
	}
	check := func(s *apiextensions.JSONSchemaProps) bool {
		for _, format := range unknownFormats(s) {
			add(fmt.Sprintf("unrecognized format %q", format))
		}
		if set := s.XListType; set != nil && *set == "set" && s.Items != nil && s.Items.Schema != nil {
			if kind := s.Items.Schema.Type; kind == "object" || kind == "array" {
				add(fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by server-side apply or CEL validation rules", kind))
			}
		}
		return false // go on through the schema
	}
	if in.Spec.Validation != nil && in.Spec.Validation.OpenAPIV3Schema != nil {
		validation.SchemaHas(in.Spec.Validation.OpenAPIV3Schema, check)
	}
	for _, version := range in.Spec.Versions {
		if version.Schema != nil && version.Schema.OpenAPIV3Schema != nil {
			validation.SchemaHas(version.Schema.OpenAPIV3Schema, check)
		}
	}
	return out
}

func unknownFormats(s *apiextensions.JSONSchemaProps) []string {
	if s.Format == "" {
		return nil
	}
	property := &spec.Schema{SchemaProps: spec.SchemaProps{Format: s.Format, Type: []string{s.Type}}}
	return apiservervalidation.GetUnrecognizedFormats(property, environment.DefaultCompatibilityVersion())
}

// Package crd is the resource customresourcedefinitions, which upstream's
// validation guards: schemas are structural, and their rules compile within
// their cost limits.
package crd

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
)

// Resource is the name of the resource.
var Resource = apiextensionsv1.Resource("customresourcedefinitions")

// Definitions are the kinds that clients add.
func Definitions() *registry.Resource {
	r := registry.Define(registry.Definition[*apiextensionsv1.CustomResourceDefinition]{
		GroupVersion: apiextensionsv1.SchemeGroupVersion, Resource: Resource.Resource, Kind: "CustomResourceDefinition",
		Singular: "customresourcedefinition", ShortNames: []string{"crd", "crds"}, Categories: []string{"api-extensions"},
		New:       func() *apiextensionsv1.CustomResourceDefinition { return &apiextensionsv1.CustomResourceDefinition{} },
		NewList:   func() runtime.Object { return &apiextensionsv1.CustomResourceDefinitionList{} },
		KeyPrefix: "/registry/apiextensions.k8s.io/customresourcedefinitions",
		Strategy:  behaviour(),
		Subresources: []registry.Subresource{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: registry.Erase(statusBehaviour())},
		},
	})
	r.StoredAsJSON = true
	r.Types = func() (managedfields.TypeConverter, error) {
		return applyconfiguration.NewTypeConverter(scheme.Scheme), nil
	}
	return r
}

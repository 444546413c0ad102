// Package scheme holds the API types that the server knows and their codecs.
package scheme

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Scheme has every type of k8s.io/api, CustomResourceDefinition, APIService and metrics. The
// server works on the versioned types directly; there are no internal versions. It
// is filled once, below, and only read afterwards.
var Scheme = build()

// Codecs makes serializers for Scheme.
var Codecs = serializer.NewCodecFactory(Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))

func build() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientscheme.AddToScheme(s))
	utilruntime.Must(apiextensionsv1.AddToScheme(s))
	utilruntime.Must(apiregistrationv1.AddToScheme(s))
	utilruntime.Must(metricsv1.AddToScheme(s))
	utilruntime.Must(metricsv1beta1.AddToScheme(s))
	// Options are also sent under the group of their own package.
	metav1.AddToGroupVersion(s, metav1.SchemeGroupVersion)
	return s
}

package handlers

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
)

// assertClients fails unless the error is the client's.
func assertClients(t *testing.T, err error) {
	t.Helper()
	var status apierrors.APIStatus
	if err != nil && (!errors.As(err, &status) || status.Status().Code < 400 || status.Status().Code > 499) {
		t.Errorf("the error is not the client's: %v", err)
	}
}

func withQuery(query string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.URL.RawQuery = query
	return r
}

func FuzzOptions(f *testing.F) {
	for _, seed := range []string{
		"", "dryRun=All&fieldManager=kubectl&fieldValidation=Strict", "dryRun=some&force=true", "force=maybe&fieldManager=%00",
		"limit=-1&continue=x&watch=1&timeoutSeconds=99999999999999999999", "%zz", "container=a&follow=&tailLines=1e3&sinceTime=yesterday",
		"command=a&command=b&stdin=0&tty=false", "ports=1,2,,x", "gracePeriodSeconds=0&propagationPolicy=Orphan&orphanDependents=yes",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		_, err := createOptions(withQuery(query))
		assertClients(t, err)
		_, err = updateOptions(withQuery(query))
		assertClients(t, err)
		for _, patch := range []types.PatchType{types.ApplyPatchType, types.JSONPatchType} {
			_, err = patchOptions(withQuery(query), patch)
			assertClients(t, err)
		}
		_, err = deleteOptions(withQuery(query))
		assertClients(t, err)
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		for _, options := range []runtime.Object{
			&corev1.PodLogOptions{}, &corev1.PodExecOptions{}, &corev1.PodAttachOptions{}, &corev1.PodPortForwardOptions{}, &corev1.PodProxyOptions{},
		} {
			assertClients(t, decodeConnectOptions(values, options))
		}
	})
}

func FuzzSelectors(f *testing.F) {
	for _, seed := range [][2]string{
		{"app=web,tier!=db", "metadata.name=a"}, {"app in (a,b),!old,new notin (x)", "spec.nodeName!=,metadata.namespace=x"},
		{"n>5,n<9", `metadata.name=a\,b\=c`}, {"((", "=="}, {"a=b=c", "status.phase=Running"}, {"a in ()", "\\"},
		{strings.Repeat("a,", 1000), strings.Repeat("metadata.name=a,", 1000)},
	} {
		f.Add(seed[0], seed[1])
	}
	e := &endpoint{resource: &registry.Resource{}, fields: map[string]bool{"spec.nodeName": true}}
	f.Fuzz(func(t *testing.T, labelSelector, fieldSelector string) {
		query := url.Values{"labelSelector": {labelSelector}, "fieldSelector": {fieldSelector}}
		l, err := e.listing(withQuery(query.Encode()), "")
		if err != nil {
			assertClients(t, err)
			return
		}
		// What is understood means the same when it is written out and read again.
		set := labels.Set{"app": "web", "n": "7", "tier": "cache"}
		if again, err := labels.Parse(l.labels.String()); err != nil || again.Matches(set) != l.labels.Matches(set) {
			t.Errorf("%q became %q, %v", labelSelector, l.labels.String(), err)
		}
		have := fields.Set{"metadata.name": "a", "spec.nodeName": "n1"}
		if again, err := fields.ParseSelector(l.fields.String()); err != nil || again.Matches(have) != l.fields.Matches(have) {
			t.Errorf("%q became %q, %v", fieldSelector, l.fields.String(), err)
		}
		for _, requirement := range l.fields.Requirements() {
			if requirement.Field != "metadata.name" && requirement.Field != "metadata.namespace" && requirement.Field != "spec.nodeName" {
				t.Errorf("%q selects by %s, which the kind has not got", fieldSelector, requirement.Field)
			}
		}
	})
}

func FuzzVersions(f *testing.F) {
	for _, version := range []string{"", "0", "1", "-1", "9223372036854775808", "0x1", "1e3", "٣"} {
		f.Add(version, "Exact", true)
		f.Add(version, "", false)
	}
	f.Fuzz(func(t *testing.T, version, match string, limited bool) {
		v, err := versions(version, metav1.ResourceVersionMatch(match), limited)
		assertClients(t, err)
		if err == nil && v.Revision < 0 {
			t.Errorf("%q is %+v", version, v)
		}
	})
}

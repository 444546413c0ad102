package handlers

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/sampan-io/sampan/services/apiserver/internal/rest"
	"github.com/sampan-io/sampan/services/apiserver/internal/watch"
)

// decodeQuery reads an options object of meta.k8s.io from a query.
func decodeQuery(r *http.Request, into runtime.Object) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return decodeParameters(values, schema.GroupVersion{Version: "v1"}, into)
}

func decodeParameters(values url.Values, version schema.GroupVersion, into runtime.Object) error {
	if err := clientscheme.ParameterCodec.DecodeParameters(values, version, into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// decodeConnectOptions reads the options of a connect subresource, which are
// objects of their kind's own group.
func decodeConnectOptions(values url.Values, into runtime.Object) error {
	kinds, _, err := clientscheme.Scheme.ObjectKinds(into)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := decodeFields(values, into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	into.GetObjectKind().SetGroupVersionKind(kinds[0])
	return nil
}

func invalidOptions(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

func optionsKind(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: kind}
}

func createOptions(r *http.Request) (*metav1.CreateOptions, error) {
	options := &metav1.CreateOptions{}
	if err := decodeQuery(r, options); err != nil {
		return nil, err
	}
	options.TypeMeta = optionsKind("CreateOptions")
	return options, invalidOptions("CreateOptions", validation.ValidateCreateOptions(options))
}

func updateOptions(r *http.Request) (*metav1.UpdateOptions, error) {
	options := &metav1.UpdateOptions{}
	if err := decodeQuery(r, options); err != nil {
		return nil, err
	}
	options.TypeMeta = optionsKind("UpdateOptions")
	return options, invalidOptions("UpdateOptions", validation.ValidateUpdateOptions(options))
}

func patchOptions(r *http.Request, patch types.PatchType) (*metav1.PatchOptions, error) {
	options := &metav1.PatchOptions{}
	if err := decodeQuery(r, options); err != nil {
		return nil, err
	}
	options.TypeMeta = optionsKind("PatchOptions")
	return options, invalidOptions("PatchOptions", validation.ValidatePatchOptions(options, patch))
}

// manager is the field manager of a request: the one that it names, else the
// name of the client's program.
func manager(r *http.Request, named string) string {
	if named != "" {
		return named
	}
	agent, _, _ := strings.Cut(r.UserAgent(), "/")
	var out strings.Builder
	for _, c := range agent {
		if !unicode.IsPrint(c) {
			continue
		}
		if out.Len()+utf8.RuneLen(c) > validation.FieldManagerMaxLength {
			break
		}
		out.WriteRune(c)
	}
	return out.String()
}

func dryRun(values []string) bool { return len(values) > 0 }

// write is what a request says of its write.
func write(r *http.Request, named string, dry []string, options runtime.Object) rest.Write {
	return rest.Write{DryRun: dryRun(dry), Manager: manager(r, named), Options: options}
}

// listing is what a list, watch or deletecollection asks for.
type listing struct {
	metav1.ListOptions
	labels labels.Selector
	fields fields.Selector
}

func (e *endpoint) listing(r *http.Request, name string) (*listing, error) {
	l := &listing{labels: labels.Everything(), fields: fields.Everything()}
	if err := decodeQuery(r, &l.ListOptions); err != nil {
		return nil, err
	}
	var err error
	if l.LabelSelector != "" {
		if l.labels, err = labels.Parse(l.LabelSelector); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if l.FieldSelector != "" {
		if l.fields, err = e.fieldSelector(l.FieldSelector); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	return l, l.validate(name)
}

// validate sets what older clients leave out of a watch, and checks what
// combinations make sense. A name comes from a watch's path.
func (l *listing) validate(name string) error {
	if l.Watch && l.SendInitialEvents == nil && l.ResourceVersionMatch == "" && (l.ResourceVersion == "" || l.ResourceVersion == "0") {
		initial := true
		l.SendInitialEvents, l.ResourceVersionMatch = &initial, metav1.ResourceVersionMatchNotOlderThan
	}
	if l.FieldSelector != "" && name != "" {
		pinned, ok := l.fields.RequiresExactMatch("metadata.name")
		if !ok || pinned != name {
			return apierrors.NewBadRequest("only single-name watches are supported: the field selector does not match the requested name")
		}
	}
	internal := &internalversion.ListOptions{
		Watch: l.Watch, ResourceVersion: l.ResourceVersion, ResourceVersionMatch: l.ResourceVersionMatch,
		AllowWatchBookmarks: l.AllowWatchBookmarks, TimeoutSeconds: l.TimeoutSeconds, Limit: l.Limit,
		Continue: l.Continue, SendInitialEvents: l.SendInitialEvents,
	}
	return invalidOptions("ListOptions", internalvalidation.ValidateListOptions(internal, true))
}

// fieldSelector parses a selector and refuses fields that the kind does not
// have.
func (e *endpoint) fieldSelector(text string) (fields.Selector, error) {
	selector, err := fields.ParseSelector(text)
	if err != nil {
		return nil, err
	}
	return selector.Transform(func(label, value string) (string, string, error) {
		switch {
		case e.resource.Untyped != nil && !e.resource.Namespaced && label == "metadata.namespace":
			return "", "", fmt.Errorf("field label not supported: %s", label)
		case label == "metadata.name", label == "metadata.namespace", e.fields[label]:
			return label, value, nil
		case len(e.fields) == 0 && e.resource.Untyped == nil:
			return "", "", fmt.Errorf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", label)
		default:
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
	})
}

// revision is the number in a resourceVersion parameter; "" and "0" are 0.
func revision(version string) (int64, error) {
	if version == "" || version == "0" {
		return 0, nil
	}
	n, err := strconv.ParseUint(version, 10, 63)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q: %v", version, err))
	}
	return int64(n), nil
}

// versions says how fresh a get or an unlimited list must be.
func versions(version string, match metav1.ResourceVersionMatch, limited bool) (watch.Versions, error) {
	n, err := revision(version)
	if err != nil {
		return watch.Versions{}, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", field.ErrorList{
			field.Invalid(field.NewPath("resourceVersion"), version, "strconv.ParseUint: parsing "+quote(version)+": invalid syntax"),
		})
	}
	switch {
	case match == metav1.ResourceVersionMatchExact:
		return watch.Versions{Match: watch.Exact, Revision: n}, nil
	case version == "":
		return watch.Versions{Match: watch.MostRecent}, nil
	case n == 0:
		return watch.Versions{Match: watch.Any}, nil
	case match == "" && limited:
		return watch.Versions{Match: watch.Exact, Revision: n}, nil
	}
	return watch.Versions{Match: watch.NotOlderThan, Revision: n}, nil
}

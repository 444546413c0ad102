package resources_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/core"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/resources"
	"github.com/sampan-io/sampan/services/apiserver/internal/scheme"
)

// emptyState has no objects.
type emptyState struct{ registry.State }

func (emptyState) List(context.Context, schema.GroupResource, string) ([]runtime.Object, error) {
	return nil, nil
}

func (emptyState) Get(_ context.Context, resource schema.GroupResource, _, name string) (runtime.Object, error) {
	return nil, apierrors.NewNotFound(resource, name)
}

// unreachable answers every stream and proxy with 501.
type unreachable struct{}

func (unreachable) serve() (http.Handler, error) { return http.NotFoundHandler(), nil }

func (u unreachable) Exec(context.Context, string, string, string, runtime.Object) (http.Handler, error) {
	return u.serve()
}

func (u unreachable) Attach(context.Context, string, string, string, runtime.Object) (http.Handler, error) {
	return u.serve()
}

func (u unreachable) Log(context.Context, string, string, string, runtime.Object) (http.Handler, error) {
	return u.serve()
}

func (u unreachable) PortForward(context.Context, string, string, string, runtime.Object) (http.Handler, error) {
	return u.serve()
}

func (u unreachable) PodProxy(context.Context, string, string, string, runtime.Object) (http.Handler, error) {
	return u.serve()
}

func (u unreachable) NodeProxy(context.Context, string, string, string, runtime.Object) (http.Handler, error) {
	return u.serve()
}

func (u unreachable) ServiceProxy(context.Context, string, string, string, runtime.Object) (http.Handler, error) {
	return u.serve()
}

func all(t *testing.T) []*registry.Resource {
	t.Helper()
	return resources.New(resources.Deps{
		State:        func() registry.State { return emptyState{} },
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}, FirstNodePort: 30000, LastNodePort: 32767,
		EventTTL: time.Hour, Streaming: unreachable{}, Proxying: unreachable{}, Components: []core.Component{},
	})
}

func name(r *registry.Resource) string { return r.GroupVersionResource.String() }

func TestResourcesAreNamedOnce(t *testing.T) {
	served, kinds, short := map[schema.GroupVersionResource]bool{}, map[schema.GroupVersionKind]bool{}, map[string]string{}
	for _, r := range all(t) {
		if served[r.GroupVersionResource] {
			t.Errorf("%s is listed twice", name(r))
		}
		served[r.GroupVersionResource] = true
		kind := r.GroupVersion().WithKind(r.Kind)
		if kinds[kind] {
			t.Errorf("kind %s is listed twice", kind)
		}
		kinds[kind] = true
		for _, s := range r.ShortNames {
			if other, taken := short[s]; taken && other != r.Resource {
				t.Errorf("short name %s is of %s and of %s", s, other, r.Resource)
			}
			short[s] = r.Resource
		}
		seen := map[string]bool{}
		for _, s := range r.Subresources {
			if seen[s.Name] {
				t.Errorf("%s has subresource %s twice", name(r), s.Name)
			}
			seen[s.Name] = true
		}
	}
}

func TestResourcesMakeTheirKinds(t *testing.T) {
	for _, r := range all(t) {
		check := func(obj runtime.Object, kind string) {
			got, _, err := scheme.Scheme.ObjectKinds(obj)
			if err != nil || len(got) == 0 || got[0] != r.GroupVersion().WithKind(kind) {
				t.Errorf("%s makes a %v (%v), want %s", name(r), got, err, kind)
			}
		}
		check(r.New(), r.Kind)
		if r.NewList != nil {
			check(r.NewList(), r.Kind+"List")
		}
		if stored := r.KeyPrefix != ""; stored == (r.CreateOnly != nil || r.Virtual != nil) {
			t.Errorf("%s must have one of a key prefix, CreateOnly and Virtual", name(r))
		}
		for _, sub := range r.Subresources {
			ways := 0
			for _, set := range []bool{sub.Scale != nil, sub.Create != nil, sub.Connect != nil, sub.Update != nil && sub.Create == nil} {
				if set {
					ways++
				}
			}
			if ways != 1 || len(sub.Verbs) == 0 {
				t.Errorf("%s/%s is served in %d ways by verbs %v", name(r), sub.Name, ways, sub.Verbs)
			}
		}
	}
}

// exercise runs all of a resource's functions on an object and on an older form
// of it, and checks that defaulting twice is defaulting once.
func exercise(t *testing.T, r *registry.Resource, obj, old runtime.Object) {
	t.Helper()
	ctx := context.Background()
	strategies := map[string]*registry.Strategy{"": r.Strategy}
	for _, sub := range r.Subresources {
		if sub.Update != nil {
			strategies[sub.Name] = sub.Update
		}
	}
	for sub, s := range strategies {
		if s == nil {
			continue
		}
		o, was := obj.DeepCopyObject(), old.DeepCopyObject()
		if s.Default != nil {
			s.Default(o)
			s.Default(was)
			once := o.DeepCopyObject()
			s.Default(o)
			if !apiequality.Semantic.DeepEqual(once, o) {
				t.Errorf("%s/%s: defaulting twice differs from defaulting once", name(r), sub)
			}
		}
		create(ctx, s, o.DeepCopyObject())
		update(ctx, s, o, was)
	}
	if r.Fields != nil {
		r.Fields(obj)
	}
	if r.TTL != nil {
		r.TTL(obj)
	}
	if r.Table != nil {
		if cells := r.Table.Cells(obj, time.Now()); len(cells) != len(r.Table.Columns) {
			t.Errorf("%s: %d cells in %d columns", name(r), len(cells), len(r.Table.Columns))
		}
	}
	if r.ToStored != nil {
		once := throughStore(t, r, obj)
		if twice := throughStore(t, r, once); !apiequality.Semantic.DeepEqual(once, twice) {
			t.Errorf("%s: what was stored changes when it is stored again", name(r))
		}
	}
}

// throughStore is an object as it comes back after it was stored.
func throughStore(t *testing.T, r *registry.Resource, obj runtime.Object) runtime.Object {
	t.Helper()
	stored, err := r.ToStored(t.Context(), obj.DeepCopyObject())
	if err != nil {
		t.Fatalf("%s: %v", name(r), err)
	}
	back, err := r.FromStored(t.Context(), stored)
	if err != nil {
		t.Fatalf("%s: %v", name(r), err)
	}
	return back
}

func create(ctx context.Context, s *registry.Strategy, obj runtime.Object) {
	if s.PrepareForCreate != nil {
		s.PrepareForCreate(ctx, obj)
	}
	valid := true
	if s.Validate != nil {
		valid = len(s.Validate(ctx, obj)) == 0
	}
	if s.Warnings != nil && valid {
		s.Warnings(ctx, obj, nil)
	}
	if s.Canonicalize != nil {
		s.Canonicalize(obj)
	}
	if s.SpecOf != nil {
		s.SpecOf(obj)
	}
	if s.Begin != nil {
		if done, err := s.Begin(ctx, obj, nil, true); err == nil {
			done(false)
		}
	}
}

func update(ctx context.Context, s *registry.Strategy, obj, old runtime.Object) {
	if s.PrepareForUpdate != nil {
		s.PrepareForUpdate(ctx, obj, old)
	}
	valid := true
	if s.ValidateUpdate != nil {
		valid = len(s.ValidateUpdate(ctx, obj, old)) == 0
	}
	if s.Warnings != nil && valid {
		s.Warnings(ctx, obj, old)
	}
	if s.GracePeriod != nil {
		s.GracePeriod(ctx, obj, nil)
		s.GracePeriod(ctx, obj, &metav1.DeleteOptions{})
	}
	if s.MarkDeleted != nil {
		s.MarkDeleted(obj)
	}
	if s.Held != nil {
		s.Held(obj)
	}
	if s.Begin != nil {
		if done, err := s.Begin(ctx, obj, old, false); err == nil {
			done(false)
		}
	}
	if s.AfterDelete != nil {
		s.AfterDelete(ctx, obj)
	}
}

func TestStrategiesTakeEmptyObjects(t *testing.T) {
	for _, r := range all(t) {
		if r.KeyPrefix != "" {
			exercise(t, r, r.New(), r.New())
		}
	}
}

// filler makes random objects with quantities, unions and raw objects that
// could come over the wire.
func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.4).NumElements(0, 3).MaxDepth(14).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(1<<40)-1<<20, resource.DecimalSI)
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			*v = intstr.FromInt32(c.Int31n(200) - 20)
			if c.Bool() {
				*v = intstr.FromString(fmt.Sprintf("%d%%", c.Int31n(200)))
			}
		},
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(c.Int63n(1<<31), 0) },
		func(t *metav1.MicroTime, c randfill.Continue) {
			*t = metav1.NewMicroTime(time.Unix(c.Int63n(1<<31), 0))
		},
		func(r *runtime.RawExtension, c randfill.Continue) { r.Raw = []byte(`{"a":1}`) },
		func(m *metav1.ManagedFieldsEntry, c randfill.Continue) {},
		func(f *metav1.FieldsV1, c randfill.Continue) {},
		func(s *string, c randfill.Continue) {
			words := []string{"", "a", "web", "10.0.0.1", "::1", "None", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "a/b", "../x", "TCP", "Always", "\x00", "Ä"}
			*s = words[c.Intn(len(words))]
		},
	)
}

func TestStrategiesTakeRandomObjects(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	for _, r := range all(t) {
		if r.KeyPrefix == "" {
			continue
		}
		for round := range rounds {
			fill := filler(rand.New(rand.NewSource(int64(round))).Int63())
			obj, old := r.New(), r.New()
			fill.Fill(obj)
			fill.Fill(old)
			clearType(obj)
			clearType(old)
			exercise(t, r, obj, old)
		}
	}
}

// clearType empties the type, which codecs set.
func clearType(obj runtime.Object) {
	reflect.ValueOf(obj).Elem().FieldByName("TypeMeta").Set(reflect.ValueOf(metav1.TypeMeta{}))
}

var rewrite = flag.Bool("update", false, "rewrite the table in docs/apis/resources.md and the documents in testdata")

const (
	page  = "../../../../../docs/apis/resources.md"
	begin = "<!-- resources: begin -->\n"
	end   = "<!-- resources: end -->\n"
)

// document is the table of what is served as the page shows it.
func document(list []*registry.Resource) string {
	var b strings.Builder
	b.WriteString("| group/version | resource | short | subresources | key prefix | stored version | media type |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range list {
		var subs []string
		for _, s := range r.Subresources {
			subs = append(subs, s.Name)
		}
		slices.Sort(subs)
		key, version, media := "not stored", "", ""
		if r.KeyPrefix != "" {
			key, version, media = "`"+r.KeyPrefix+"`", r.StoredVersion.String(), "protobuf"
			if r.StoredAsJSON {
				media = "JSON"
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", r.GroupVersion(), r.Resource, strings.Join(r.ShortNames, ", "), strings.Join(subs, ", "), key, version, media)
	}
	return b.String()
}

func TestDocumentedKeysAreThoseServed(t *testing.T) {
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(data), begin)
	have, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no table between its markers", page)
	}
	want := document(all(t))
	if have == want {
		return
	}
	if !*rewrite {
		t.Fatalf("%s does not show what is served; run this test with -update and look at the difference", page)
	}
	if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Package registry describes REST resources: what they are called, how they are
// defaulted, prepared, validated and printed, and what their subresources do.
//
// A new resource is one file in a package below (core, apps, …) that returns a
// *Resource made by Define, and one line in the list in package resources.
package registry

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// Object is what every stored kind is.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource is one REST resource with its type erased, as the handlers use it.
// Make one with Define, or as a literal for a resource without storage.
type Resource struct {
	schema.GroupVersionResource
	Kind       string // "Pod"
	ListKind   string // Kind + "List" when empty
	Singular   string
	ShortNames []string
	Categories []string
	Namespaced bool
	// Verbs as discovery names them; nil is all of create, delete,
	// deletecollection, get, list, patch, update, watch.
	Verbs []string

	New     func() runtime.Object
	NewList func() runtime.Object

	// KeyPrefix is upstream's key without trailing slash ("/registry/pods",
	// "/registry/minions"). Two resources with the same KeyPrefix share one cache
	// (core and events.k8s.io events).
	KeyPrefix string
	// StoredVersion is the group version that values are stored in.
	StoredVersion schema.GroupVersion
	// StoredAsJSON keeps values as JSON documents instead of protobuf envelopes.
	StoredAsJSON bool
	// ToStored and FromStored convert where the served version is not the stored
	// one; nil elsewhere. They do not change obj, except that FromStored of an
	// untyped kind takes it over.
	// Another program may do it: the context bounds how long they wait.
	ToStored, FromStored func(ctx context.Context, obj runtime.Object) (runtime.Object, error)
	// Fields are the selectable fields besides metadata.name and
	// metadata.namespace. Indexed are those of them that lists and watches are
	// bucketed by.
	Fields  func(obj runtime.Object) fields.Set
	Indexed []string
	TTL     func(obj runtime.Object) time.Duration
	// ReturnDeleted answers a DELETE with the object that was deleted, where others
	// answer with a Status. Kinds with graceful deletion always do.
	ReturnDeleted bool

	Strategy *Strategy
	Table    *Table
	// Types relates objects to their schema for server-side apply, for kinds that
	// client-go has no schema of; nil for others.
	Types func() (managedfields.TypeConverter, error)
	// Subresources by name, in the order of discovery.
	Subresources []Subresource

	// CreateOnly serves a resource that is not stored (reviews): the answer to a
	// POST. Strategy.Default and Validate are applied before.
	CreateOnly func(ctx context.Context, obj runtime.Object, dryRun bool) (runtime.Object, error)
	// Virtual serves get and list of a resource that is not stored
	// (componentstatuses).
	Virtual Virtual

	// Untyped describes a kind that has no Go type, nil for others.
	Untyped *Untyped
	// Warnings are sent with every answer (of a deprecated version).
	Warnings []string
}

// Untyped is what a Go type would tell of a kind whose objects are
// *unstructured.Unstructured. Such a kind is stored in JSON, in any of its
// versions, and has neither a protobuf form nor strategic merges.
type Untyped struct {
	// Edition changes with everything that decides how objects are read: their
	// forms of two editions are not the same.
	Edition string
	// Coerce drops what the schema does not know from an object of the served
	// version, and says where that was if track is set. It fails on metadata of the
	// wrong types.
	Coerce func(obj runtime.Object, track bool) (unknown []string, err error)
	// Convert brings an object that it takes over into another version, for
	// server-side apply: it keeps fields that the version does not know.
	Convert func(ctx context.Context, obj runtime.Object, to schema.GroupVersion) (runtime.Object, error)
	// FromStoredAll is FromStored for many objects, each of which it replaces, where
	// another program converts between versions; nil elsewhere.
	FromStoredAll func(ctx context.Context, objects []runtime.Object) error
	// Select reads the selectable fields of a stored object that it takes over, where
	// another program must convert it first: they are then read when a list or watch
	// asks for them, and not when the object is stored.
	Select func(ctx context.Context, obj runtime.Object) (fields.Set, error)
	// ReplicasPaths is where each version keeps the replicas of its scale.
	ReplicasPaths managedfields.ResourcePathMappings

	// Model and ListModel are the names of the OpenAPI models of the kind and of
	// its list, and Models the models in version 3 or 2 of OpenAPI.
	Model, ListModel string
	Models           func(v2 bool) (map[string]json.RawMessage, error)
}

// Subresource is the resource's subresource of that name, nil when it has none.
func (r *Resource) Subresource(name string) *Subresource {
	for i := range r.Subresources {
		if r.Subresources[i].Name == name {
			return &r.Subresources[i]
		}
	}
	return nil
}

// JSONForm names the JSON form of objects in this version and edition.
func (r *Resource) JSONForm() string {
	name := "json/" + r.GroupVersion().String()
	if r.Untyped != nil {
		name += "/" + r.Untyped.Edition
	}
	return name
}

// ListKindName is the kind of lists.
func (r *Resource) ListKindName() string {
	if r.ListKind != "" {
		return r.ListKind
	}
	return r.Kind + "List"
}

// Virtual reads objects that are computed.
type Virtual interface {
	Get(ctx context.Context, namespace, name string) (runtime.Object, error)
	List(ctx context.Context, namespace string) (runtime.Object, error)
}

// Strategy is a kind's behaviour on writes, with its type erased. Every
// function may be nil.
type Strategy struct {
	// Default sets absent fields, as upstream's SetDefaults functions do. It is
	// idempotent, and also applied after admission changed an object.
	Default func(obj runtime.Object)
	// PrepareForCreate and PrepareForUpdate drop or keep what clients may not set
	// (status, spec on a status update) and set the generation beyond the generic
	// rule.
	PrepareForCreate func(ctx context.Context, obj runtime.Object)
	PrepareForUpdate func(ctx context.Context, obj, old runtime.Object)
	// Validate and ValidateUpdate check everything but ObjectMeta, which the engine
	// checks with ValidateName.
	Validate       func(ctx context.Context, obj runtime.Object) field.ErrorList
	ValidateUpdate func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	// ValidateName is k8s.io/apimachinery/pkg/api/validation.NameIsDNSSubdomain
	// when nil.
	ValidateName func(name string, prefix bool) []string
	Warnings     func(ctx context.Context, obj, old runtime.Object) []string
	Canonicalize func(obj runtime.Object)

	// AllowCreateOnUpdate lets PUT create (leases, …).
	AllowCreateOnUpdate bool
	// RequireVersionOnUpdate refuses a PUT without resourceVersion.
	RequireVersionOnUpdate bool

	// SpecOf returns the part whose change bumps metadata.generation, nil for kinds
	// without a generation. The engine sets 1 on create, and adds 1 on an update of
	// the main resource that changes it.
	SpecOf func(obj runtime.Object) any

	// GracePeriod makes deletion graceful (pods): it returns the seconds to wait
	// before the object goes, 0 for an immediate deletion. The engine then sets
	// deletionTimestamp and deletionGracePeriodSeconds and keeps the object.
	GracePeriod func(ctx context.Context, obj runtime.Object, options *metav1.DeleteOptions) int64
	// MarkDeleted changes an object whose deletionTimestamp the engine has just set
	// (a namespace's phase becomes Terminating).
	MarkDeleted func(obj runtime.Object)
	// Held keeps a deleted object beyond its metadata.finalizers: while it is true,
	// the engine treats the object as if it had one more finalizer (namespaces:
	// spec.finalizers). It is also asked on subresource updates (finalize): when it
	// turns false on an object with a deletionTimestamp, the object goes.
	Held func(obj runtime.Object) bool
	// DefaultPropagation is the propagation when the client names none; "" is
	// background.
	DefaultPropagation metav1.DeletionPropagation

	// ResetFields are the fields that this strategy resets on a write and which
	// server-side apply therefore must not own: paths such as "status" or
	// "metadata.deletionTimestamp", relative to the object.
	ResetFields []string

	// Begin is called before a create or update is stored and allocates what the
	// object needs outside itself (cluster IPs, node ports). On a dry run it must
	// allocate nothing for good. done(false) undoes it, done(true) makes it final.
	Begin func(ctx context.Context, obj, old runtime.Object, dryRun bool) (done func(stored bool), err error)
	// AfterDelete releases what Begin allocated, after the object has gone.
	AfterDelete func(ctx context.Context, obj runtime.Object)
}

// Table is how a kind is printed.
type Table struct {
	Columns []metav1.TableColumnDefinition
	// Rows are the cells of one object, as many as Columns.
	// The times in them are as table.Since gives them.
	Row func(obj runtime.Object) []any
	// Conditions mark rows, such as those of completed pods; may be nil.
	Conditions func(obj runtime.Object) []metav1.TableRowCondition
	// Order compares the stored objects of a list's rows; nil keeps a list's order.
	Order func(a, b runtime.Object) int
}

// Cells are the cells of one object at the moment.
func (t *Table) Cells(obj runtime.Object, now time.Time) []any { return table.Resolve(t.Row(obj), now) }

// Subresource is one subresource of a resource. Exactly one of Update, Scale,
// Create and Connect is set, except that Create may have an Update beside it:
// then Update is not served, but is the strategy of State.Update under this
// subresource's name, by which Create.Handle stores what it changes (binding).
type Subresource struct {
	Name string
	// Kind is what the subresource's bodies are, when not the parent's kind.
	Kind schema.GroupVersionKind
	// Verbs as discovery names them.
	Verbs []string

	// Update serves get, update and patch of the parent object under another
	// strategy (status, ephemeralcontainers, resize, approval, finalize).
	Update *Strategy
	// Scale serves autoscaling/v1 Scale.
	Scale *Scale
	// Create answers a POST (binding, eviction, token).
	Create *Create
	// Connect serves a stream or proxy (exec, log, portforward, proxy).
	Connect *Connect
}

// Scale maps a kind to autoscaling/v1 Scale.
type Scale struct {
	Replicas    func(obj runtime.Object) (spec, status int32)
	Selector    func(obj runtime.Object) string
	SetReplicas func(obj runtime.Object, replicas int32)
	// Check says why an object has no scale; nil lets every object have one.
	Check func(obj runtime.Object) error
}

// Create serves a POST to a subresource.
type Create struct {
	New      func() runtime.Object // the body
	Default  func(obj runtime.Object)
	Validate func(ctx context.Context, obj runtime.Object) field.ErrorList
	// Handle acts after admission and returns the answer's body.
	Handle func(ctx context.Context, namespace, name string, obj runtime.Object, dryRun bool) (runtime.Object, error)
}

// Connect serves a stream or proxy below an object.
type Connect struct {
	// NewOptions is decoded from the query (PodExecOptions, PodLogOptions, …), and
	// is the object that admission sees.
	NewOptions func() runtime.Object
	Methods    []string // HTTP methods served
	// Long says that no request deadline applies (log only with follow).
	Long func(options runtime.Object) bool
	// Handler returns what serves the request, or an API status error.
	Handler func(ctx context.Context, namespace, name, path string, options runtime.Object) (http.Handler, error)
}

// Reader reads stored objects in process. Objects are shared: who wants to
// change one copies it. Errors are API status errors.
type Reader interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error)
	List(ctx context.Context, resource schema.GroupResource, namespace string) ([]runtime.Object, error)
}

// Subscriber tells of every change of a resource in process, in order.
type Subscriber interface {
	// Subscribe first delivers every current object as created, returns when that
	// is done, and goes on until ctx ends. Old is nil for a creation and new for a
	// deletion. Objects are shared.
	Subscribe(ctx context.Context, resource schema.GroupResource, handle func(old, new runtime.Object)) error
}

// Writer changes stored objects in process through the same engine as requests:
// default, prepare, validate, store, but not authorization. Errors are API
// status errors.
type Writer interface {
	Create(ctx context.Context, resource schema.GroupResource, obj runtime.Object) (runtime.Object, error)
	// Update runs change on a copy of the newest object, again on every conflict,
	// and stores the result under the strategy of the subresource ("" is the main
	// one). A change that returns an error ends the update with it.
	Update(ctx context.Context, resource schema.GroupResource, subresource, namespace, name string, dryRun bool, change func(obj runtime.Object) error) (runtime.Object, error)
	Delete(ctx context.Context, resource schema.GroupResource, namespace, name string, options *metav1.DeleteOptions, dryRun bool) error
}

// State is the whole in-process access to stored objects. The engine
// implements it.
type State interface {
	Reader
	Subscriber
	Writer
}

// Admission is the part of an admission chain that the engine calls.
type Admission interface {
	Admit(ctx context.Context, a *admission.Attributes) error
	Validate(ctx context.Context, a *admission.Attributes) error
}

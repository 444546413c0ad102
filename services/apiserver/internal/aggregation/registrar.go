package aggregation

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/apiregistration"
)

const (
	managedLabel = "kube-aggregator.kubernetes.io/automanaged"
	// onStart is the label's value for built-in groups, always for those of custom
	// resources, whose APIServices go with them.
	onStart, always = "onstart", "true"
	// repairInterval is when a repair that failed is tried again.
	repairInterval = 5 * time.Second
	localReason    = "Local"
	localMessage   = "Local APIServices are always available"
)

var definitions = apiextensionsv1.Resource("customresourcedefinitions")

// registrar keeps an APIService for each group version that is served here.
type registrar struct {
	state   registry.State
	builtIn []schema.GroupVersion
	log     *slog.Logger
	wake    chan struct{} // has room for one
}

func newRegistrar(state registry.State, builtIn []schema.GroupVersion, log *slog.Logger) *registrar {
	return &registrar{state: state, builtIn: builtIn, log: log, wake: make(chan struct{}, 1)}
}

// look has the APIServices repaired now.
func (r *registrar) look() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run keeps them until ctx ends.
func (r *registrar) run(ctx context.Context) error {
	err := r.state.Subscribe(ctx, definitions, func(_, _ runtime.Object) { r.look() })
	if err != nil && !apierrors.IsNotFound(err) { // a server without custom resources
		return err
	}
	for {
		pause := time.Duration(-1)
		if err := r.repair(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("Registering the API groups that are served here", "err", err)
			pause = repairInterval
		}
		var again <-chan time.Time
		if pause > 0 {
			again = time.After(pause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-again:
		}
	}
}

// repair makes what is missing, and takes away what was made for custom resources
// that are gone.
func (r *registrar) repair(ctx context.Context) error {
	wanted, err := r.wanted(ctx)
	if err != nil {
		return err
	}
	objects, err := r.state.List(ctx, apiregistration.Resource, "")
	if err != nil {
		return err
	}
	var errs []error
	for _, obj := range objects {
		have, ok := obj.(*apiregistrationv1.APIService)
		if !ok {
			continue
		}
		if wanted[have.Name] != nil {
			delete(wanted, have.Name)
			if have.Spec.Service == nil {
				errs = append(errs, r.settle(ctx, have))
			}
			continue
		}
		if have.Labels[managedLabel] == always {
			err := r.state.Delete(ctx, apiregistration.Resource, "", have.Name, &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.UID))}, false)
			if !apierrors.IsNotFound(err) {
				errs = append(errs, err)
			}
			continue
		}
		if have.Spec.Service == nil {
			errs = append(errs, r.settle(ctx, have))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		created, err := r.state.Create(ctx, apiregistration.Resource, wanted[name])
		if err != nil {
			if !apierrors.IsAlreadyExists(err) {
				errs = append(errs, err)
			}
			continue
		}
		if service, ok := created.(*apiregistrationv1.APIService); ok {
			errs = append(errs, r.settle(ctx, service))
		}
	}
	return errors.Join(errs...)
}

// settle says of a local APIService that it is available.
func (r *registrar) settle(ctx context.Context, service *apiregistrationv1.APIService) error {
	for _, condition := range service.Status.Conditions {
		if condition.Type == apiregistrationv1.Available && condition.Status == apiregistrationv1.ConditionTrue && condition.Reason == localReason {
			return nil
		}
	}
	err := setAvailable(ctx, r.state, service.Name, string(service.UID), apiregistrationv1.APIServiceCondition{
		Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, Reason: localReason, Message: localMessage,
	})
	if errors.Is(err, errOther) {
		return nil
	}
	return err
}

// wanted are the APIServices of all that is served here, by name.
func (r *registrar) wanted(ctx context.Context) (map[string]*apiregistrationv1.APIService, error) {
	wanted := map[string]*apiregistrationv1.APIService{}
	for _, gv := range r.builtIn {
		group, version := priorities(gv)
		s := newLocal(gv, onStart, group, version)
		wanted[s.Name] = s
	}
	objects, err := r.state.List(ctx, definitions, "")
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	for _, obj := range objects {
		definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
		if !ok {
			continue
		}
		for _, version := range definition.Spec.Versions {
			s := newLocal(schema.GroupVersion{Group: definition.Spec.Group, Version: version.Name}, always, 1000, 100)
			if version.Served && wanted[s.Name] == nil {
				wanted[s.Name] = s
			}
		}
	}
	return wanted, nil
}

func newLocal(gv schema.GroupVersion, managed string, group, version int32) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group, Labels: map[string]string{managedLabel: managed}},
		Spec:       apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: group, VersionPriority: version},
	}
}

// priorities of built-in groups and their versions are upstream's; of two versions
// the more stable one comes first, and of two stable ones the later.
func priorities(gv schema.GroupVersion) (group, version int32) {
	groups := map[string]int32{
		"": 18000, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700, "authorization.k8s.io": 17600, "autoscaling": 17500,
		"batch": 17400, "certificates.k8s.io": 17300, "networking.k8s.io": 17200, "policy": 17100, "rbac.authorization.k8s.io": 17000,
		"storage.k8s.io": 16800, "admissionregistration.k8s.io": 16700, "apiextensions.k8s.io": 16700, "scheduling.k8s.io": 16600,
		"coordination.k8s.io": 16500, "node.k8s.io": 16300, "discovery.k8s.io": 16200, "flowcontrol.apiserver.k8s.io": 16100,
		"internal.apiserver.k8s.io": 16000, "resource.k8s.io": 15900, "storagemigration.k8s.io": 15800,
	}
	group, known := groups[gv.Group]
	if !known {
		group = 15000
	}
	switch {
	case gv.Group == "":
		version = 1
	case gv.Group == "autoscaling" && gv.Version == "v2":
		version = 30
	case strings.Contains(gv.Version, "alpha"):
		version = 1
	case strings.Contains(gv.Version, "beta"):
		version = 9
	default:
		version = 15
	}
	return group, version
}

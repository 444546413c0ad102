package storagemigration

import (
	"context"
	"strings"
	"testing"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newMigration(resource, version string, conditions ...storagemigrationv1.MigrationConditionType) *migration {
	obj := &migration{Spec: storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: "apps", Resource: resource}}}
	obj.Status.ResourceVersion = version
	for _, kind := range conditions {
		obj.Status.Conditions = append(obj.Status.Conditions, metav1.Condition{Type: string(kind), Status: "True", Reason: "R", LastTransitionTime: metav1.Now()})
	}
	return obj
}

func TestMigrationRefusals(t *testing.T) {
	r := StorageVersionMigrations()
	status := r.Subresources[0].Update
	for _, test := range []struct {
		want     string
		obj, old *migration
	}{
		{"", newMigration("deployments", ""), nil},
		{"spec.resource.resource: Required value: resource is required", newMigration("", ""), nil},
		{"spec: Invalid value", newMigration("daemonsets", ""), newMigration("deployments", "")},
		{"", newMigration("deployments", "12", storagemigrationv1.MigrationRunning), newMigration("deployments", "")},
		{"status.resourceVersion: Invalid value: \"x\"", newMigration("deployments", "x"), newMigration("deployments", "")},
		{"status.resourceVersion: Invalid value: \"13\": field is immutable", newMigration("deployments", "13"), newMigration("deployments", "12")},
		{"Both success and failed conditions cannot be true", newMigration("deployments", "", storagemigrationv1.MigrationSucceeded, storagemigrationv1.MigrationFailed), newMigration("deployments", "")},
		{"Success condition cannot be set to false", newMigration("deployments", ""), newMigration("deployments", "", storagemigrationv1.MigrationSucceeded)},
	} {
		var got string
		ctx := context.Background()
		errs := r.Strategy.Validate(ctx, test.obj)
		if test.old != nil {
			errs = append(r.Strategy.ValidateUpdate(ctx, test.obj, test.old), status.ValidateUpdate(ctx, test.obj, test.old)...)
		}
		if err := errs.ToAggregate(); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

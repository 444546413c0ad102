package finalizer_test

import (
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/controller-manager/internal/finalizer"
)

func TestWanted(t *testing.T) {
	now := metav1.Now()
	no, yes := func() (bool, error) { return false, nil }, func() (bool, error) { return true, nil }
	for what, test := range map[string]struct {
		deleted    *metav1.Time
		have, want []string
		used       func() (bool, error)
	}{
		"alive and without":         {have: []string{"a"}, want: []string{"a", "mine"}},
		"alive and with":            {have: []string{"mine", "a"}, want: []string{"mine", "a"}},
		"deleted and in use":        {&now, []string{"mine", "a"}, []string{"mine", "a"}, yes},
		"deleted and free":          {&now, []string{"b", "mine", "a"}, []string{"b", "a"}, no},
		"deleted and not protected": {deleted: &now, have: []string{"a"}, want: []string{"a"}},
	} {
		obj := &metav1.ObjectMeta{DeletionTimestamp: test.deleted, Finalizers: slices.Clone(test.have)}
		got, change, err := finalizer.Wanted(obj, "mine", test.used)
		if err != nil || !slices.Equal(got, test.want) || change == slices.Equal(test.have, test.want) || !slices.Equal(obj.Finalizers, test.have) {
			t.Errorf("%s: %v, %v, %v", what, got, change, err)
		}
	}
	broken := errors.New("broken")
	obj := &metav1.ObjectMeta{DeletionTimestamp: &now, Finalizers: []string{"mine"}}
	if got, change, err := finalizer.Wanted(obj, "mine", func() (bool, error) { return false, broken }); !errors.Is(err, broken) || change || len(got) != 1 {
		t.Errorf("where use cannot be told: %v, %v, %v", got, change, err)
	}
}

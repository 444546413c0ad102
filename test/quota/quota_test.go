// Package quota holds the API server and the controller manager together to what
// ResourceQuotas promise.
package quota

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sampan-io/sampan/test/standalone"
)

const (
	limit   = 10
	workers = 16
	// churn is for how long objects come and go.
	churn = 5 * time.Second
)

// Many clients create and delete at once, creates fail after they were charged, and
// the controller counts all the while: there are never more objects than the limit
// allows, and at the end the quota knows how many there are.
func TestLimitHoldsWhileObjectsComeAndGo(t *testing.T) {
	c := standalone.Start(t)
	c.RunControllers(t)
	ctx := t.Context()
	if _, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	limits := corev1.ResourceList{"count/secrets": resource.MustParse(fmt.Sprint(limit))}
	if _, err := c.Client.CoreV1().ResourceQuotas("blue").Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: limits}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func(ctx context.Context) int64 {
		q, err := c.Client.CoreV1().ResourceQuotas("blue").Get(ctx, "q", metav1.GetOptions{})
		if err != nil {
			return -1
		}
		value, ok := q.Status.Used["count/secrets"]
		if !ok {
			return -1
		}
		return value.Value()
	}
	standalone.Eventually(t, "the quota is counted", func(ctx context.Context) bool { return used(ctx) == 0 })
	most := observe(t, c)
	var created, refused atomic.Int64
	stop := time.Now().Add(churn)
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			for n := 0; time.Now().Before(stop); n++ {
				work(ctx, t, c, fmt.Sprintf("s-%d-%d", worker, n%3), &created, &refused)
			}
		})
	}
	group.Wait()
	if most() > limit {
		t.Errorf("there were %d objects at once, the limit is %d", most(), limit)
	}
	t.Logf("%d created, %d refused, at most %d at once", created.Load(), refused.Load(), most())
	if created.Load() < 2*limit || refused.Load() == 0 {
		t.Errorf("%d created and %d refused show little", created.Load(), refused.Load())
	}
	standalone.Eventually(t, "the quota knows what there is", func(ctx context.Context) bool {
		list, err := c.Client.CoreV1().Secrets("blue").List(ctx, metav1.ListOptions{})
		return err == nil && used(ctx) == int64(len(list.Items))
	})
}

// work creates an object, tries it again, which is charged for nothing, and deletes
// it.
func work(ctx context.Context, t *testing.T, c *standalone.Cluster, name string, created, refused *atomic.Int64) {
	secrets := c.Client.CoreV1().Secrets("blue")
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := secrets.Create(ctx, object, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err):
		refused.Add(1)
		time.Sleep(10 * time.Millisecond) // a client that backs off
		return
	case err != nil && !apierrors.IsAlreadyExists(err):
		t.Errorf("creating: %v", err)
		return
	}
	created.Add(1)
	if _, err := secrets.Create(ctx, object, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) {
		t.Errorf("creating again: %v", err)
	}
	if err := secrets.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("deleting: %v", err)
	}
}

// observe counts the objects at each event; the function tells the most there were
// at once.
func observe(t *testing.T, c *standalone.Cluster) (most func() int64) {
	t.Helper()
	w, err := c.Client.CoreV1().Secrets("blue").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	var highest atomic.Int64
	go func() {
		there := int64(0)
		for event := range w.ResultChan() {
			switch event.Type {
			case watch.Added:
				there++
			case watch.Deleted:
				there--
			}
			highest.Store(max(highest.Load(), there))
		}
	}()
	return highest.Load
}

// Package serviceaccount keeps the service account "default" in each namespace.
package serviceaccount

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/podcontrol"
)

const (
	name        = "serviceaccount-controller"
	accountName = "default"
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"serviceaccount"}, Account: "service-account-controller", New: New}
}

// Controller makes missing service accounts. Its keys are names of namespaces.
type Controller struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
	queue      *controller.Queue
	synced     []cache.InformerSynced
}

// New makes the controller from env.
func New(env controller.Env) (controller.Runner, error) {
	core := env.Informers.Core().V1()
	c := &Controller{client: env.Client, namespaces: core.Namespaces().Lister(), accounts: core.ServiceAccounts().Lister()}
	c.queue = controller.NewQueue("serviceaccount", env.Config.Workers(name), env.Log, c.reconcile)
	add := func(ns *corev1.Namespace) { c.queue.Add(ns.Name) }
	namespacesSynced, err := controller.Watch(core.Namespaces().Informer(), add, func(_, ns *corev1.Namespace) { add(ns) }, nil)
	if err != nil {
		return nil, err
	}
	accountsSynced, err := controller.Watch(core.ServiceAccounts().Informer(), nil, nil, func(account *corev1.ServiceAccount) {
		if account.Name == accountName {
			c.queue.Add(account.Namespace)
		}
	})
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{namespacesSynced, accountsSynced}
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.synced...) }

func (c *Controller) reconcile(ctx context.Context, namespace string) (time.Duration, error) {
	ns, err := c.namespaces.Get(namespace)
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("reading namespace %s: %w", namespace, err)
	case ns.Status.Phase == corev1.NamespaceTerminating || ns.DeletionTimestamp != nil:
		return 0, nil
	}
	if _, err := c.accounts.ServiceAccounts(namespace).Get(accountName); err == nil {
		return 0, nil
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: accountName}}
	_, err = c.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) && !podcontrol.NamespaceEnding(err) && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("creating service account %s/%s: %w", namespace, accountName, err)
	}
	return 0, nil
}

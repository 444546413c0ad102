// Package rootca publishes the cluster's certificate authority in each
// namespace, for pods to check the API server with.
package rootca

import (
	"context"
	"fmt"
	"maps"
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
	name          = "root-ca-certificate-publisher-controller"
	configMapName = "kube-root-ca.crt"
	dataKey       = "ca.crt"
	description   = "kubernetes.io/description"
	note          = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

// Definition is the controller's entry in the list.
func Definition() controller.Definition {
	return controller.Definition{Name: name, Aliases: []string{"root-ca-cert-publisher"}, Account: "root-ca-cert-publisher", New: New}
}

// Controller writes the config maps. Its keys are names of namespaces.
type Controller struct {
	ca         string
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	configMaps corelisters.ConfigMapLister
	queue      *controller.Queue
	synced     []cache.InformerSynced
}

// New makes the controller from env; nil when there is no root CA to publish.
func New(env controller.Env) (controller.Runner, error) {
	if len(env.Config.RootCA) == 0 {
		return nil, nil
	}
	core := env.Informers.Core().V1()
	c := &Controller{ca: string(env.Config.RootCA), client: env.Client, namespaces: core.Namespaces().Lister(), configMaps: core.ConfigMaps().Lister()}
	c.queue = controller.NewQueue("root_ca_cert_publisher", env.Config.Workers(name), env.Log, c.reconcile)
	add := func(ns *corev1.Namespace) { c.queue.Add(ns.Name) }
	namespacesSynced, err := controller.Watch(core.Namespaces().Informer(), add, func(_, ns *corev1.Namespace) { add(ns) }, nil)
	if err != nil {
		return nil, err
	}
	changed := func(m *corev1.ConfigMap) {
		if m.Name == configMapName {
			c.queue.Add(m.Namespace)
		}
	}
	mapsSynced, err := controller.Watch(core.ConfigMaps().Informer(), nil, func(_, m *corev1.ConfigMap) { changed(m) }, changed)
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{namespacesSynced, mapsSynced}
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
	current, err := c.configMaps.ConfigMaps(namespace).Get(configMapName)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("reading config map %s/%s: %w", namespace, configMapName, err)
	}
	if err != nil {
		current = nil
	}
	wanted, change := decide(current, namespace, c.ca)
	if !change {
		return 0, nil
	}
	if current == nil {
		_, err = c.client.CoreV1().ConfigMaps(namespace).Create(ctx, wanted, metav1.CreateOptions{})
	} else {
		_, err = c.client.CoreV1().ConfigMaps(namespace).Update(ctx, wanted, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) && !podcontrol.NamespaceEnding(err) && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("writing config map %s/%s: %w", namespace, configMapName, err)
	}
	return 0, nil
}

// decide is the config map that should stand in namespace, and whether it differs
// from current, which is nil when there is none.
func decide(current *corev1.ConfigMap, namespace, ca string) (*corev1.ConfigMap, bool) {
	data := map[string]string{dataKey: ca}
	if current == nil {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: configMapName, Annotations: map[string]string{description: note}},
			Data:       data,
		}, true
	}
	if maps.Equal(current.Data, data) && current.Annotations[description] == note {
		return current, false
	}
	wanted := current.DeepCopy()
	wanted.Data = data
	if wanted.Annotations == nil {
		wanted.Annotations = map[string]string{}
	}
	wanted.Annotations[description] = note
	return wanted, true
}

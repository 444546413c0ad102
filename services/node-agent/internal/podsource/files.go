package podsource

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// Files follows the pods of a directory: each file whose name ends in .yaml, .yml
// or .json is one pod.
type Files struct {
	Dir    string
	Node   string
	Update func(pod *corev1.Pod)
	Remove func(uid types.UID)
	// Synced is called once, when all pods that there were have been handed over.
	Synced func()
	Log    *slog.Logger
}

// Run follows them until ctx ends.
func (f *Files) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching static pods: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(f.Dir); err != nil {
		return fmt.Errorf("watching static pods: %w", err)
	}
	known := map[types.UID]string{}
	f.read(known)
	f.Synced()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
			timer.Reset(settle) // whoever writes may not be done
		case err := <-watcher.Errors:
			return fmt.Errorf("watching static pods: %w", err)
		case <-timer.C:
			f.read(known)
		}
	}
}

// read hands over what has changed since the last time.
func (f *Files) read(known map[types.UID]string) {
	pods, err := f.Pods()
	if err != nil {
		f.Log.Warn("Reading static pods", "err", err)
	}
	now := map[types.UID]bool{}
	for _, pod := range pods {
		now[pod.UID] = true
		if _, already := known[pod.UID]; !already {
			known[pod.UID] = pod.Name
			f.Update(pod)
		}
	}
	for uid := range known {
		if !now[uid] {
			delete(known, uid)
			f.Remove(uid)
		}
	}
}

// Pods reads all files. What cannot be read is left out and told of.
func (f *Files) Pods() ([]*corev1.Pod, error) {
	entries, err := os.ReadDir(f.Dir)
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	var errs []error
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() || strings.HasPrefix(name, ".") || !isManifest(name) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(f.Dir, name))
		if err == nil {
			var pod *corev1.Pod
			if pod, err = parseStatic(data, f.Node); err == nil {
				pods = append(pods, pod)
				continue
			}
		}
		errs = append(errs, fmt.Errorf("static pod %s: %w", name, err))
	}
	return pods, errors.Join(errs...)
}

func isManifest(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// parseStatic reads a pod and gives it what the API server would have: a UID that
// changes with the file, the node's name, and defaults.
func parseStatic(data []byte, node string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(data, pod); err != nil {
		return nil, err
	}
	switch {
	case pod.Kind != "Pod" || pod.APIVersion != "v1":
		return nil, fmt.Errorf("it is a %s of %s, not a Pod of v1", pod.Kind, pod.APIVersion)
	case pod.Name == "" || len(pod.Spec.Containers) == 0:
		return nil, errors.New("it needs a name and containers")
	case pod.Spec.ServiceAccountName != "" || usesAPI(pod):
		return nil, errors.New("static pods cannot use service accounts, secrets or config maps")
	}
	sum := sha256.Sum256(append([]byte(node+"\x00"), data...))
	hash := hex.EncodeToString(sum[:16])
	pod.UID = types.UID(hash)
	pod.Name += "-" + strings.ToLower(node)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = node
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations["kubernetes.io/config.source"] = "file"
	pod.Annotations["kubernetes.io/config.hash"] = hash
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	setDefaults(&pod.Spec)
	return pod, nil
}

func usesAPI(pod *corev1.Pod) bool {
	for _, volume := range pod.Spec.Volumes {
		if volume.Secret != nil || volume.ConfigMap != nil || volume.Projected != nil {
			return true
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			if len(c.EnvFrom) > 0 {
				return true
			}
			for _, v := range c.Env {
				if v.ValueFrom != nil && (v.ValueFrom.SecretKeyRef != nil || v.ValueFrom.ConfigMapKeyRef != nil) {
					return true
				}
			}
		}
	}
	return false
}

// setDefaults fills in what running a pod relies on.
func setDefaults(spec *corev1.PodSpec) {
	const grace = int64(30)
	setDefault(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	setDefault(&spec.DNSPolicy, corev1.DNSClusterFirst)
	if spec.TerminationGracePeriodSeconds == nil {
		seconds := grace
		spec.TerminationGracePeriodSeconds = &seconds
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			setContainerDefaults(&list[i])
		}
	}
}

func setContainerDefaults(c *corev1.Container) {
	setDefault(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	policy := corev1.PullIfNotPresent
	if strings.HasSuffix(c.Image, ":latest") || !strings.ContainsAny(c.Image[strings.LastIndexByte(c.Image, '/')+1:], ":@") {
		policy = corev1.PullAlways
	}
	setDefault(&c.ImagePullPolicy, policy)
	for i := range c.Ports {
		setDefault(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for name, limit := range c.Resources.Limits {
		if _, set := c.Resources.Requests[name]; !set {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[name] = limit
		}
	}
}

func setDefault[T comparable](value *T, usual T) {
	var none T
	if *value == none {
		*value = usual
	}
}

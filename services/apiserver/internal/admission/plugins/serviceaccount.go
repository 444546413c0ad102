package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/tokens"
)

const (
	defaultAccount   = "default"
	tokenMountPath   = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenVolume      = "kube-api-access-"
	rootCAConfigMap  = "kube-root-ca.crt"
	mountableSecrets = "kubernetes.io/enforce-mountable-secrets"
	// accountWait is how long a pod waits for its namespace's default account, which
	// a controller makes right after the namespace.
	accountWait = time.Second
)

// serviceAccount gives each pod a service account, and mounts the account's
// token, the cluster's root certificate and the namespace's name into its
// containers.
type serviceAccount struct {
	plugin
	state State
}

func newServiceAccount(config Config) admission.Plugin {
	return &serviceAccount{plugin{"ServiceAccount", []admission.Operation{admission.Create, admission.Update}}, config.State}
}

// Admit implements admission.Mutator.
func (p *serviceAccount) Admit(ctx context.Context, a *admission.Attributes) error {
	pod := podOf(a)
	if pod == nil || a.Operation != admission.Create || isMirror(pod) {
		return nil
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = defaultAccount
	}
	pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
	account, err := p.account(ctx, a.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return fmt.Errorf("error looking up service account %s/%s: %v", a.Namespace, pod.Spec.ServiceAccountName, err) //nolint:errorlint // the refusal is a 403, not the look-up's 404
	}
	if mounts(account, pod) {
		mountToken(pod)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		pod.Spec.ImagePullSecrets = slices.Clone(account.ImagePullSecrets)
	}
	return nil
}

// Validate implements admission.Validator.
func (p *serviceAccount) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Resource.GroupResource() != corev1.Resource("pods") {
		return nil
	}
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || a.Operation == admission.Update && a.Subresource != "ephemeralcontainers" || a.Operation == admission.Create && a.Subresource != "" {
		return nil
	}
	if isMirror(pod) && a.Operation == admission.Create {
		return validateMirror(pod)
	}
	account, err := p.account(ctx, a.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return fmt.Errorf("error looking up service account %s/%s: %v", a.Namespace, pod.Spec.ServiceAccountName, err) //nolint:errorlint // as above
	}
	if account.Annotations[mountableSecrets] == "true" {
		return limitSecrets(account, pod)
	}
	return nil
}

func isMirror(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// validateMirror refuses a mirror pod that would get anything of the cluster.
func validateMirror(pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return errors.New("a mirror pod may not reference service accounts")
	}
	refs := secretsOf(pod)
	if len(refs.all()) > 0 {
		return errors.New("a mirror pod may not reference secrets")
	}
	for i := range pod.Spec.Volumes {
		if source := pod.Spec.Volumes[i].Projected; source != nil {
			for _, projection := range source.Sources {
				if projection.ServiceAccountToken != nil {
					return errors.New("a mirror pod may not use ServiceAccountToken volume projections")
				}
			}
		}
	}
	return nil
}

// account reads the account, and waits a little for one named default.
func (p *serviceAccount) account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	obj, err := p.state.Get(ctx, corev1.Resource("serviceaccounts"), namespace, name)
	if apierrors.IsNotFound(err) && name == defaultAccount {
		obj, err = p.await(ctx, namespace, name, err)
	}
	if err != nil {
		return nil, err
	}
	account, ok := obj.(*corev1.ServiceAccount)
	if !ok {
		return nil, fmt.Errorf("it is a %T", obj)
	}
	return account, nil
}

// await waits for the account to appear; missing is the error if it does not.
func (p *serviceAccount) await(ctx context.Context, namespace, name string, missing error) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, accountWait)
	defer cancel()
	found := make(chan runtime.Object, 1)
	err := p.state.Subscribe(ctx, corev1.Resource("serviceaccounts"), func(_, new runtime.Object) {
		if account, ok := new.(*corev1.ServiceAccount); ok && account.Namespace == namespace && account.Name == name {
			select {
			case found <- new:
			default:
			}
		}
	})
	if err != nil {
		return nil, err
	}
	select {
	case obj := <-found:
		return obj, nil
	case <-ctx.Done():
		return nil, missing
	}
}

// mounts says whether the pod gets a token: its own word, else the account's, else
// yes.
func mounts(account *corev1.ServiceAccount, pod *corev1.Pod) bool {
	if pod.Spec.AutomountServiceAccountToken != nil {
		return *pod.Spec.AutomountServiceAccountToken
	}
	return account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken
}

// mountToken mounts the token volume into the containers that mount nothing in
// its place, and adds the volume if one needs it.
func mountToken(pod *corev1.Pod) {
	name, have := "", false
	for _, volume := range pod.Spec.Volumes {
		if strings.HasPrefix(volume.Name, tokenVolume) {
			name, have = volume.Name, true
			break
		}
	}
	if !have {
		name = tokenVolume + utilrand.String(5)
	}
	needed := false
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenMountPath }) {
				continue
			}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenMountPath})
			needed = true
		}
	}
	if needed && !have {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: tokenSource()}})
	}
}

func tokenSource() *corev1.ProjectedVolumeSource {
	return &corev1.ProjectedVolumeSource{
		DefaultMode: new(corev1.ProjectedVolumeSourceDefaultMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(tokens.MountedExpirationSeconds))}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCAConfigMap},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}
}

// limitSecrets refuses secrets that an account with the annotation does not list.
func limitSecrets(account *corev1.ServiceAccount, pod *corev1.Pod) error {
	allowed := func(name string) bool {
		return slices.ContainsFunc(account.Secrets, func(ref corev1.ObjectReference) bool { return ref.Name == name })
	}
	refs := secretsOf(pod)
	for _, name := range refs.volumes {
		if !allowed(name) {
			return fmt.Errorf("volume with secret.secretName=%q is not allowed because service account %s does not reference that secret", name, account.Name)
		}
	}
	for _, name := range refs.environment {
		if !allowed(name) {
			return fmt.Errorf("a container with an environment variable that references secret %q is not allowed because service account %s does not reference that secret", name, account.Name)
		}
	}
	for i, ref := range pod.Spec.ImagePullSecrets {
		if !slices.Contains(account.ImagePullSecrets, ref) {
			return fmt.Errorf("imagePullSecrets[%d].name=%q is not allowed because service account %s does not reference that imagePullSecret", i, ref.Name, account.Name)
		}
	}
	return nil
}

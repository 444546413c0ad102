package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// projectedKind gathers several sources in one directory, in memory, for there
// are tokens among them.
type projectedKind struct{}

func (projectedKind) name() string               { return "kubernetes.io~projected" }
func (projectedKind) owns(v *corev1.Volume) bool { return v.Projected != nil }

func (projectedKind) setUp(ctx context.Context, r *request) (result, error) {
	defaultMode := mode(r.volume.Projected.DefaultMode)
	files := fileSet{}
	var renew time.Time
	var errs []error
	for i := range r.volume.Projected.Sources {
		part, due, err := r.project(ctx, &r.volume.Projected.Sources[i], defaultMode)
		errs = append(errs, err)
		maps.Copy(files, part)
		if !due.IsZero() && (renew.IsZero() || due.Before(renew)) {
			renew = due
		}
	}
	if err := errors.Join(errs...); err != nil {
		return result{}, err
	}
	if err := mountMemory(r.dir, 0); err != nil {
		return result{}, err
	}
	done, err := r.write(files)
	done.renew = renew
	return done, err
}

func (r *request) project(ctx context.Context, source *corev1.VolumeProjection, mode int32) (files fileSet, renew time.Time, err error) {
	switch {
	case source.ConfigMap != nil:
		files, err = configMapFiles(ctx, r, source.ConfigMap.Name, source.ConfigMap.Items, source.ConfigMap.Optional, mode)
	case source.Secret != nil:
		files, err = secretFiles(ctx, r, source.Secret.Name, source.Secret.Items, source.Secret.Optional, mode)
	case source.DownwardAPI != nil:
		files, err = downwardAPIFiles(r, source.DownwardAPI.Items, mode)
	case source.ServiceAccountToken != nil:
		return r.token(ctx, source.ServiceAccountToken, mode)
	case source.ClusterTrustBundle != nil:
		files, err = trustBundleFiles(ctx, r, source.ClusterTrustBundle, mode)
	default:
		err = fmt.Errorf("the projection %s is not supported by this node", source)
	}
	return files, time.Time{}, err
}

func (r *request) token(ctx context.Context, source *corev1.ServiceAccountTokenProjection, mode int32) (fileSet, time.Time, error) {
	lifetime := time.Hour
	if source.ExpirationSeconds != nil {
		lifetime = time.Duration(*source.ExpirationSeconds) * time.Second
	}
	token, renew, err := r.cfg.Tokens.Token(ctx, r.pod, source.Audience, lifetime)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	f := file{data: []byte(token), mode: mode, uid: -1}
	user := commonUser(r.pod)
	if user != nil {
		f.uid = int(*user)
	}
	if user != nil || fsGroup(r.pod) != nil {
		f.mode = 0o600
	}
	return fileSet{source.Path: f}, renew, nil
}

// commonUser is the user that all containers run as, if they do: the token can be
// theirs alone then.
func commonUser(pod *corev1.Pod) *int64 {
	var user *int64
	if pod.Spec.SecurityContext != nil {
		user = pod.Spec.SecurityContext.RunAsUser
	}
	var common *int64
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			own := user
			if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
				own = c.SecurityContext.RunAsUser
			}
			if own == nil || (common != nil && *common != *own) {
				return nil
			}
			common = own
		}
	}
	return common
}

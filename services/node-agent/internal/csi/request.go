package csi

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"
	// defaultTokenLife is that of a token whose driver names none.
	defaultTokenLife = time.Hour
)

// inlineHandle is the handle of an inline volume, which nobody else gives one.
func inlineHandle(pod types.UID, volume string) string {
	sum := sha256.Sum256([]byte(string(pod) + "-" + volume))
	return fmt.Sprintf("csi-%x", sum)
}

// describePod fills what the driver is told when it publishes: the volume's
// attributes, and of the pod what its CSIDriver asks for.
func (m *mounting) describePod(ctx context.Context) error {
	m.context = map[string]string{}
	if m.Persistent != nil {
		maps.Copy(m.context, m.Persistent.Spec.CSI.VolumeAttributes)
	} else {
		maps.Copy(m.context, m.Inline.VolumeAttributes)
	}
	if isTrue(m.spec.PodInfoOnMount) {
		maps.Copy(m.context, map[string]string{
			"csi.storage.k8s.io/pod.name": m.Pod.Name, "csi.storage.k8s.io/pod.namespace": m.Pod.Namespace, "csi.storage.k8s.io/pod.uid": string(m.Pod.UID),
			"csi.storage.k8s.io/serviceAccount.name": m.Pod.Spec.ServiceAccountName, "csi.storage.k8s.io/ephemeral": strconv.FormatBool(m.Inline != nil),
		})
	}
	if isTrue(m.spec.ServiceAccountTokenInSecrets) {
		return nil // publishSecret has them
	}
	tokens, err := m.tokens(ctx)
	if err != nil {
		return err
	}
	if tokens != "" {
		m.context[tokensKey] = tokens
	}
	return nil
}

// tokens are those of the pod's service account that the driver wants, as it wants
// them: JSON by audience. None is "".
func (m *mounting) tokens(ctx context.Context) (string, error) {
	if len(m.spec.TokenRequests) == 0 {
		return "", nil
	}
	made := map[string]authenticationv1.TokenRequestStatus{}
	for _, request := range m.spec.TokenRequests {
		life := defaultTokenLife
		if request.ExpirationSeconds != nil {
			life = time.Duration(*request.ExpirationSeconds) * time.Second
		}
		token, renew, err := m.cfg.Tokens.Token(ctx, m.Pod, request.Audience, life)
		if err != nil {
			return "", err
		}
		if m.renew.IsZero() || renew.Before(m.renew) {
			m.renew = renew
		}
		made[request.Audience] = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: expiry(token)}
	}
	text, err := json.Marshal(made)
	return string(text), err
}

// expiry is what a token says of its end.
func expiry(token string) metav1.Time {
	parts := strings.Split(token, ".")
	var claims struct {
		Expires int64 `json:"exp"`
	}
	if len(parts) == 3 {
		if text, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil && json.Unmarshal(text, &claims) == nil {
			return metav1.Unix(claims.Expires, 0)
		}
	}
	return metav1.Time{}
}

// capability is how the volume is to be used.
func (m *mounting) capability() *csipb.VolumeCapability {
	mount := &csipb.VolumeCapability_MountVolume{VolumeMountGroup: m.group}
	mode := csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	if m.Persistent != nil {
		mount.FsType, mount.MountFlags = m.Persistent.Spec.CSI.FSType, m.Persistent.Spec.MountOptions
		mode = m.accessMode()
	} else if m.Inline.FSType != nil {
		mount.FsType = *m.Inline.FSType
	}
	return &csipb.VolumeCapability{
		AccessType: &csipb.VolumeCapability_Mount{Mount: mount},
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: mode},
	}
}

// accessMode is the first of the volume's access modes in CSI's words.
func (m *mounting) accessMode() csipb.VolumeCapability_AccessMode_Mode {
	modes := m.Persistent.Spec.AccessModes
	if len(modes) == 0 {
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	fine := m.driver.can(csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	switch mode := modes[0]; {
	case mode == corev1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case mode == corev1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == corev1.ReadWriteOncePod && fine:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case mode == corev1.ReadWriteOnce && fine:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// ownedByGroup says whether the pod's group is to own the volume's files, by the
// driver's policy.
func (m *mounting) ownedByGroup() bool {
	context := m.Pod.Spec.SecurityContext
	if context == nil || context.FSGroup == nil || m.ReadOnly {
		return false
	}
	switch *m.spec.FSGroupPolicy {
	case storagev1.FileFSGroupPolicy:
		return true
	case storagev1.NoneFSGroupPolicy:
		return false
	}
	return m.Persistent != nil && m.Persistent.Spec.CSI.FSType != "" && slices.ContainsFunc(m.Persistent.Spec.AccessModes, func(mode corev1.PersistentVolumeAccessMode) bool {
		return mode == corev1.ReadWriteOnce || mode == corev1.ReadWriteOncePod
	})
}

// fillGroup has a driver that can do so give the files to the pod's group.
func (m *mounting) fillGroup() {
	if context := m.Pod.Spec.SecurityContext; context != nil && context.FSGroup != nil && m.driver.can(csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		m.group = strconv.FormatInt(*context.FSGroup, 10)
	}
}

func (m *mounting) appliesGroup() bool { return m.group == "" && m.ownedByGroup() }

func (m *mounting) secret(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	object, err := m.cfg.Secrets.Secret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	secrets := map[string]string{}
	for key, value := range object.Data {
		secrets[key] = string(value)
	}
	return secrets, nil
}

// publishSecret is what the driver gets to publish, with the pod's tokens where it
// wants them there.
func (m *mounting) publishSecret(ctx context.Context) (map[string]string, error) {
	var ref *corev1.SecretReference
	if m.Persistent != nil {
		ref = m.Persistent.Spec.CSI.NodePublishSecretRef
	} else if local := m.Inline.NodePublishSecretRef; local != nil {
		ref = &corev1.SecretReference{Namespace: m.Pod.Namespace, Name: local.Name}
	}
	secrets, err := m.secret(ctx, ref)
	if err != nil || !isTrue(m.spec.ServiceAccountTokenInSecrets) {
		return secrets, err
	}
	tokens, err := m.tokens(ctx)
	if err != nil || tokens == "" {
		return secrets, err
	}
	if secrets == nil {
		secrets = map[string]string{}
	}
	secrets[tokensKey] = tokens
	return secrets, nil
}

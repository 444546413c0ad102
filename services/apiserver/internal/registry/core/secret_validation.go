package core

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

func validateSecret(obj *corev1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	total := 0
	for _, key := range slices.Sorted(maps.Keys(obj.Data)) {
		for _, msg := range utilvalidation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(data.Key(key), key, msg))
		}
		total += len(obj.Data[key])
	}
	if total > maxPayload {
		errs = append(errs, field.TooLong(data, "" /* the values are not shown */, maxPayload))
	}
	return append(errs, validateSecretType(obj, data)...)
}

// validateSecretType checks that the keys which the secret's type promises are
// there.
func validateSecretType(obj *corev1.Secret, data *field.Path) field.ErrorList {
	var errs field.ErrorList
	want := func(keys ...string) {
		for _, key := range keys {
			if _, have := obj.Data[key]; !have {
				errs = append(errs, field.Required(data.Key(key), ""))
			}
		}
	}
	switch obj.Type {
	case corev1.SecretTypeServiceAccountToken:
		path := field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey)
		if len(obj.Annotations[corev1.ServiceAccountNameKey]) == 0 {
			errs = append(errs, field.Required(path, ""))
		}
	case corev1.SecretTypeDockercfg:
		errs = append(errs, validateDockerConfig(obj, corev1.DockerConfigKey, data)...)
	case corev1.SecretTypeDockerConfigJson:
		errs = append(errs, validateDockerConfig(obj, corev1.DockerConfigJsonKey, data)...)
	case corev1.SecretTypeBasicAuth:
		_, user := obj.Data[corev1.BasicAuthUsernameKey]
		_, password := obj.Data[corev1.BasicAuthPasswordKey]
		if !user && !password { // either may be empty, not both absent
			want(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(obj.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		want(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	return errs
}

func validateDockerConfig(obj *corev1.Secret, key string, data *field.Path) field.ErrorList {
	content, have := obj.Data[key]
	if !have {
		return field.ErrorList{field.Required(data.Key(key), "")}
	}
	if err := json.Unmarshal(content, &map[string]any{}); err != nil {
		return field.ErrorList{field.Invalid(data.Key(key), "<secret contents redacted>", err.Error())}
	}
	return nil
}

func validateSecretUpdate(_ context.Context, obj, old *corev1.Secret) field.ErrorList {
	errs := apivalidation.ValidateImmutableField(obj.Type, old.Type, field.NewPath("type"))
	if table.Value(old.Immutable) {
		const fixed = "field is immutable when `immutable` is set"
		if !table.Value(obj.Immutable) {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), fixed))
		}
		if !apiequality.Semantic.DeepEqual(obj.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), fixed))
		}
	}
	return append(errs, validateSecret(obj)...)
}

// warnOfSecret tells of a key pair that TLS servers will not be able to use.
func warnOfSecret(_ context.Context, obj, _ *corev1.Secret) []string {
	if obj.Type != corev1.SecretTypeTLS {
		return nil
	}
	return warnOfKeyPair(obj.Data[corev1.TLSCertKey], obj.Data[corev1.TLSPrivateKeyKey])
}

package conformance

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var serviceAccounts = map[string]func(*testing.T){
	"should guarantee kube-root-ca.crt exist in any namespace": rootCertificateInEveryNamespace,
	"should run through the lifecycle of a ServiceAccount":     serviceAccountLifecycle,
	"should update a ServiceAccount":                           serviceAccountUpdate,
	"should allow opting out of API token automount":           tokenAutomount,
}

var subjectReviews = map[string]func(*testing.T){
	"should support SubjectReview API operations": accessReviews,
}

// certificateRequest is a PEM certificate request for the common name.
func certificateRequest(name string) []byte {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func rootCertificateInEveryNamespace(t *testing.T) {
	api := client.CoreV1().ConfigMaps(newNamespace(t))
	const name = "kube-root-ca.crt"
	intact := func(ctx context.Context) (bool, error) {
		read, err := api.Get(ctx, name, metav1.GetOptions{})
		return err == nil && strings.Contains(read.Data["ca.crt"], "BEGIN CERTIFICATE") && len(read.Data) == 1, nil
	}
	eventually(t, "the root certificate", intact)
	must(t, api.Delete(t.Context(), name, metav1.DeleteOptions{}))
	eventually(t, "the root certificate to come back", intact)
	got(api.Patch(t.Context(), name, types.MergePatchType, []byte(`{"data":{"ca.crt":"","other":"x"}}`), metav1.PatchOptions{}))(t)
	eventually(t, "the root certificate to be put right", intact)
}

func serviceAccountLifecycle(t *testing.T) {
	namespace, test := newNamespace(t), unique("account")
	api := client.CoreV1().ServiceAccounts(namespace)
	w := got(api.Watch(t.Context(), labelled(test)))(t)
	defer w.Stop()
	got(api.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "test", Labels: testLabels(test)}}, metav1.CreateOptions{}))(t)
	awaitEvent(t, w, "ADDED", nil)
	patched := got(api.Patch(t.Context(), "test", types.StrategicMergePatchType, []byte(`{"automountServiceAccountToken":false}`), metav1.PatchOptions{}))(t)
	if patched.AutomountServiceAccountToken == nil || *patched.AutomountServiceAccountToken {
		t.Error("the patch was not taken")
	}
	awaitEvent(t, w, "MODIFIED", nil)
	if list := got(client.CoreV1().ServiceAccounts("").List(t.Context(), labelled(test)))(t); len(list.Items) != 1 {
		t.Errorf("listing all namespaces gives %d", len(list.Items))
	}
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	awaitEvent(t, w, "DELETED", nil)
}

func serviceAccountUpdate(t *testing.T) {
	api := client.CoreV1().ServiceAccounts(newNamespace(t))
	made := got(api.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "test"}}, metav1.CreateOptions{}))(t)
	made.AutomountServiceAccountToken = new(true)
	updated := got(api.Update(t.Context(), made, metav1.UpdateOptions{}))(t)
	if updated.AutomountServiceAccountToken == nil || !*updated.AutomountServiceAccountToken {
		t.Error("the update was not taken")
	}
}

// tokenAutomount asserts for each setting of account and pod whether the token
// is mounted: the pod's setting wins.
func tokenAutomount(t *testing.T) {
	namespace := newNamespace(t)
	yes, no := new(true), new(false)
	accounts := map[string]*bool{"default-automount": nil, "mount": yes, "nomount": no}
	for name, automount := range accounts {
		got(client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Name: name}, AutomountServiceAccountToken: automount,
		}, metav1.CreateOptions{}))(t)
	}
	for account, setting := range accounts {
		for suffix, own := range map[string]*bool{"": nil, "-mountspec": yes, "-nomountspec": no} {
			made := idle("pod-"+account+suffix, nil, nil)
			made.Spec.ServiceAccountName, made.Spec.AutomountServiceAccountToken = account, own
			created := got(client.CoreV1().Pods(namespace).Create(t.Context(), made, metav1.CreateOptions{}))(t)
			want := true
			if setting != nil {
				want = *setting
			}
			if own != nil {
				want = *own
			}
			mounted := false
			for _, mount := range created.Spec.Containers[0].VolumeMounts {
				mounted = mounted || mount.MountPath == "/var/run/secrets/kubernetes.io/serviceaccount"
			}
			if mounted != want {
				t.Errorf("%s: mounted is %v", created.Name, mounted)
			}
		}
	}
}

func accessReviews(t *testing.T) {
	namespace := newNamespace(t)
	attributes := authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "list", Resource: "configmaps", Version: "v1"}
	user := "system:serviceaccount:" + namespace + ":default"
	api := client.AuthorizationV1()
	review := got(api.SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &attributes},
	}, metav1.CreateOptions{}))(t)
	local := got(api.LocalSubjectAccessReviews(namespace).Create(t.Context(), &authorizationv1.LocalSubjectAccessReview{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace},
		Spec:       authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &attributes},
	}, metav1.CreateOptions{}))(t)
	config := rest.CopyConfig(cluster.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	impersonated := got(kubernetes.NewForConfig(config))(t)
	_, err := impersonated.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	if allowed := err == nil; review.Status.Allowed != allowed || local.Status.Allowed != allowed {
		t.Errorf("reviews say %v and %v, listing gives %v", review.Status, local.Status, err)
	}
	self := got(api.SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes},
	}, metav1.CreateOptions{}))(t)
	if !self.Status.Allowed {
		t.Errorf("the operator may not list: %+v", self.Status)
	}
	who := got(client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}))(t)
	if who.Status.UserInfo.Username == "" {
		t.Error("a self review names nobody")
	}
}

package app_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/internal/pki"
)

// sign answers the next request for that signer, as a cluster's signer does.
func (s *site) sign(signer string, lifetime time.Duration) (request *certificatesv1.CertificateSigningRequest, issued []byte) {
	s.t.Helper()
	ctx, requests := s.t.Context(), s.client.CertificatesV1().CertificateSigningRequests()
	s.eventually("a request for "+signer, func() error {
		list, err := requests.List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=" + signer})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if len(list.Items[i].Status.Certificate) == 0 {
				request = &list.Items[i]
				return nil
			}
		}
		return errors.New("there is none")
	})
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test", Message: "it may",
	})
	approved, err := requests.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	block, _ := pem.Decode(approved.Spec.Request)
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		s.t.Fatal(err)
	}
	authority, err := pki.LoadAuthority(filepath.Join(s.dir, "ca.crt"), filepath.Join(s.dir, "ca.key"))
	if err != nil {
		s.t.Fatal(err)
	}
	serving := signer == certificatesv1.KubeletServingSignerName
	certificate, err := authority.Sign(pki.Request{
		CommonName: parsed.Subject.CommonName, Organizations: parsed.Subject.Organization, DNSNames: parsed.DNSNames, IPs: parsed.IPAddresses,
		Server: serving, Client: !serving, Lifetime: lifetime,
	}, parsed.PublicKey)
	if err != nil {
		s.t.Fatal(err)
	}
	approved.Status.Certificate = pki.EncodeCertificate(certificate)
	if _, err := requests.UpdateStatus(ctx, approved, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	return approved, certificate.Raw
}

// holds waits until the file of one of the node's certificates has this one.
func (s *site) holds(name string, want []byte) {
	s.t.Helper()
	path := filepath.Join(s.root, "pki", name+"-current.pem")
	s.eventually(path+" to be renewed", func() error {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if block, _ := pem.Decode(data); block == nil || string(block.Bytes) != string(want) {
			return errors.New("it has another certificate")
		}
		return nil
	})
}

func TestNodeGetsItsCertificatesByRequests(t *testing.T) {
	s := newIdleSite(t, "")
	authority, err := pki.LoadAuthority(filepath.Join(s.dir, "ca.crt"), filepath.Join(s.dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Request{CommonName: "system:bootstrap:abcdef", Organizations: []string{"system:bootstrappers"}, Client: true})
	if err != nil {
		t.Fatal(err)
	}
	bootstrap := filepath.Join(s.dir, "bootstrap.kubeconfig")
	config := pki.Kubeconfig{Server: s.api.Config.Host, Cluster: "test", User: "bootstrap", AuthorityFile: filepath.Join(s.dir, "ca.crt"), KeyPair: pair}
	if err := config.Write(bootstrap); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.dir, "agent.kubeconfig")); err != nil {
		t.Fatal(err)
	}
	_, err = s.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:bootstrappers"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.flags = append(s.flags, "--bootstrap-kubeconfig="+bootstrap, "--rotate-certificates", "--rotate-server-certificates")
	s.startAgent()

	const client = certificatesv1.KubeAPIServerClientKubeletSignerName
	first, certificate := s.sign(client, 20*time.Second)
	if first.Spec.Username != "system:bootstrap:abcdef" {
		t.Errorf("the first request is %s's", first.Spec.Username)
	}
	s.holds("kubelet-client", certificate)
	serving, certificate := s.sign(certificatesv1.KubeletServingSignerName, time.Hour)
	if serving.Spec.Username != "system:node:"+nodeName {
		t.Errorf("the request for serving is %s's", serving.Spec.Username)
	}
	s.holds("kubelet-server", certificate)
	s.waitReady()
	conn, err := s.dial(t.Context(), "tcp", "127.0.0.1:10250")
	if err != nil {
		t.Fatal(err)
	}
	secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // which one it is is looked at below
	if err := secured.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := secured.ConnectionState().PeerCertificates[0]; string(got.Raw) != string(certificate) || got.IPAddresses[0].String() != "127.0.0.1" {
		t.Errorf("the agent's API shows %s", got.Subject)
	}
	_ = secured.Close()

	renewal, certificate := s.sign(client, time.Hour) // before the first expires
	if renewal.Spec.Username != "system:node:"+nodeName {
		t.Errorf("the renewal is %s's", renewal.Spec.Username)
	}
	s.holds("kubelet-client", certificate)
	s.kill()
	if err := os.Remove(bootstrap); err != nil {
		t.Fatal(err)
	}
	s.startAgent() // with the kubeconfig that it has written
	s.apply(fmt.Sprintf(`
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: registry.test/tool:v1}
`, "after"))
	s.until("after", "to run", running)
}

package pki

import (
	"bytes"
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig says what a kubeconfig with a single context holds. Files are
// referred to by path, so that client-go notices when they are renewed; give
// the content instead to embed it.
type Kubeconfig struct {
	Server  string // URL
	Cluster string // name of the cluster's entry, and of the context
	User    string // name of the user's entry
	Context string // name of the context; Cluster when empty

	AuthorityFile string
	Authority     []byte // PEM

	CertificateFile, KeyFile string
	KeyPair                  *KeyPair
	Token                    string
	TokenFile                string
}

// Config is the kubeconfig in client-go's form.
func (k Kubeconfig) Config() *clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	cluster := clientcmdapi.NewCluster()
	cluster.Server = k.Server
	cluster.CertificateAuthority, cluster.CertificateAuthorityData = k.AuthorityFile, k.Authority
	user := clientcmdapi.NewAuthInfo()
	user.ClientCertificate, user.ClientKey = k.CertificateFile, k.KeyFile
	if k.KeyPair != nil {
		user.ClientCertificateData, user.ClientKeyData = k.KeyPair.Certificate, k.KeyPair.Key
	}
	user.Token, user.TokenFile = k.Token, k.TokenFile
	name := k.Context
	if name == "" {
		name = k.Cluster
	}
	context := clientcmdapi.NewContext()
	context.Cluster, context.AuthInfo = k.Cluster, k.User
	config.Clusters[k.Cluster] = cluster
	config.AuthInfos[k.User] = user
	config.Contexts[name] = context
	config.CurrentContext = name
	return config
}

// Write writes the kubeconfig for its owner's eyes only, and does nothing when
// the file has that content already.
func (k Kubeconfig) Write(path string) error {
	content, err := clientcmd.Write(*k.Config())
	if err != nil {
		return fmt.Errorf("encoding kubeconfig %s: %w", path, err)
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, content) {
		return nil
	}
	return WriteFile(path, content, PrivateMode)
}

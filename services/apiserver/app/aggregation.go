package app

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/aggregation"
	"github.com/sampan-io/sampan/services/apiserver/internal/discovery"
	"github.com/sampan-io/sampan/services/apiserver/internal/metricsapi"
	"github.com/sampan-io/sampan/services/apiserver/internal/openapi"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/serviceresolver"
	"github.com/sampan-io/sampan/services/internal/pki"
)

// AggregationOptions are about other servers that serve API groups.
type AggregationOptions struct {
	ClientCertFile, ClientKeyFile string
	RejectRedirects               bool
}

func (o *AggregationOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ClientCertFile, "proxy-client-cert-file", "", "client certificate (PEM) by which aggregated API servers know this one")
	fs.StringVar(&o.ClientKeyFile, "proxy-client-key-file", "", "key of --proxy-client-cert-file")
	fs.BoolVar(&o.RejectRedirects, "aggregator-reject-forwarding-redirect", true, "answer redirects of aggregated API servers with an error instead of letting them through")
}

func (o *AggregationOptions) check() error {
	if (o.ClientCertFile == "") != (o.ClientKeyFile == "") {
		return errors.New("--proxy-client-cert-file and --proxy-client-key-file must be given together")
	}
	return nil
}

// newAggregator passes requests on to other servers, which discovery and OpenAPI
// then describe, too.
func (s *server) newAggregator(described *discovery.Service, schemas *openapi.Service) (*aggregation.Aggregator, error) {
	o := s.Aggregation
	if o.ClientCertFile != "" {
		if _, err := tls.LoadX509KeyPair(o.ClientCertFile, o.ClientKeyFile); err != nil {
			return nil, fmt.Errorf("--proxy-client-cert-file: %w", err)
		}
	}
	state := registry.Late(func() registry.State { return s.engine })
	return aggregation.New(aggregation.Config{
		Log: s.log, State: state, Resolver: serviceresolver.New(state),
		ClientCertFile: o.ClientCertFile, ClientKeyFile: o.ClientKeyFile, FollowRedirects: !o.RejectRedirects,
		BuiltIn: s.registeredVersions(), Discovery: described, OpenAPI: schemas,
	}), nil
}

// registeredVersions are the group versions that get APIServices of their own. That
// of APIServices themselves needs none, and those of metrics are free for whoever
// serves them better.
func (s *server) registeredVersions() []schema.GroupVersion {
	seen := map[schema.GroupVersion]bool{}
	var versions []schema.GroupVersion
	for _, r := range s.resources {
		gv := r.GroupVersion()
		if !seen[gv] && gv.Group != apiregistrationv1.GroupName && gv.Group != metricsapi.Group {
			seen[gv] = true
			versions = append(versions, gv)
		}
	}
	return versions
}

// ensureFrontProxy makes what names users to other servers, where the server makes
// its other certificates, too.
func (c *config) ensureFrontProxy(dir string) error {
	if c.Identity.FrontProxyCAFile != "" || c.Aggregation.ClientCertFile != "" {
		return nil
	}
	files, err := pki.EnsureFrontProxy(dir, 0)
	if err != nil {
		return err
	}
	c.Identity.FrontProxyCAFile, c.Aggregation.ClientCertFile, c.Aggregation.ClientKeyFile = files.AuthorityFile, files.CertFile, files.KeyFile
	if len(c.Identity.FrontProxy.AllowedNames) == 0 {
		c.Identity.FrontProxy.AllowedNames = []string{pki.FrontProxyName}
	}
	return nil
}

package app

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/expression"
	"github.com/sampan-io/sampan/services/apiserver/internal/admission/plugins"
	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/tokens"
)

// security is who may do what: authenticators, authorizers and admission.
type security struct {
	authenticator authn.Authenticator
	certificates  *authn.Certificates // nil without client authorities
	tokens        authn.TokenAuthenticator
	accounts      *tokens.Authenticator
	issuer        *tokens.Issuer
	authorizer    authz.Union
	rbac          *authz.RBAC
	node          *authz.Node
	admission     *lateAdmission
	environments  *expression.Environments
	configured    plugins.Configured
	measures      *admission.Metrics
	resourcesOf   func(schema.GroupVersionKind) []*registry.Resource
	// configurations are those of admission plugins.
	configurations plugins.Configurations
}

// lateAdmission is the chain, which is made after the engine that it reads from.
type lateAdmission struct{ chain *admission.Measured }

// Admit implements registry.Admission.
func (l *lateAdmission) Admit(ctx context.Context, a *admission.Attributes) error {
	return l.chain.Admit(ctx, a)
}

// Validate implements registry.Admission.
func (l *lateAdmission) Validate(ctx context.Context, a *admission.Attributes) error {
	return l.chain.Validate(ctx, a)
}

// newSecurity makes all that needs no stored objects yet; state is bound before
// the first request.
func (c *config) newSecurity(b bundles, state registry.State) (*security, error) {
	s := &security{rbac: authz.NewRBAC(), node: authz.NewNode(), admission: &lateAdmission{}, environments: expression.NewEnvironments(), measures: admission.NewMetrics()}
	var err error
	if file := c.Admission.ConfigFile; file != "" {
		if s.configurations, err = plugins.LoadConfigurations(file); err != nil {
			return nil, fmt.Errorf("--admission-control-config-file: %w", err)
		}
	}
	if s.authorizer, err = authz.FromModes(c.Identity.AuthorizationModes, s.rbac, s.node); err != nil {
		return nil, err
	}
	if s.issuer, err = tokens.NewIssuer(c.tokens); err != nil {
		return nil, err
	}
	accounts, err := tokens.NewAuthenticator(c.tokens, state)
	if err != nil {
		return nil, err
	}
	s.accounts = accounts
	list := authn.Tokens{accounts}
	if c.Identity.BootstrapTokens {
		list = append(list, authn.NewBootstrapTokens(state))
	}
	s.tokens = list
	if b.client != nil {
		s.certificates = authn.NewCertificates(b.client)
	}
	s.authenticator = c.authenticator(b, s.certificates, list)
	return s, nil
}

func (c *config) authenticator(b bundles, certificates *authn.Certificates, list authn.Tokens) authn.Authenticator {
	order := []authn.Authenticator{authn.NewHeaders(b.frontProxy, c.Identity.FrontProxy)}
	if certificates != nil {
		order = append(order, certificates)
	}
	order = append(order, authn.NewBearer(list...))
	var last authn.Authenticator
	if c.Identity.AnonymousAuth {
		last = authn.NewAnonymous(authn.HealthPaths())
	}
	return authn.NewUnion(last, order...)
}

// start fills the authorizers and the admission chain from what is stored. The
// chain reads through state, which must answer by now.
func (s *security) start(ctx context.Context, c *config, state registry.State) error {
	if err := s.rbac.Start(ctx, state); err != nil {
		return err
	}
	if err := s.node.Start(ctx, state); err != nil {
		return err
	}
	chain, err := plugins.New(plugins.Config{
		State: state, Writer: state, Configurations: s.configurations, Authorizer: s.authorizer, Enable: c.Admission.Enable, Disable: c.Admission.Disable,
		NotReadySeconds: c.Admission.NotReadySeconds, UnreachableSeconds: c.Admission.UnreachableSeconds,
		APIAudiences: c.tokens.Audiences, Configured: s.configured, ResourcesOf: s.resourcesOf,
	})
	if err != nil {
		return fmt.Errorf("making the admission chain: %w", err)
	}
	s.admission.chain = admission.Measure(chain, s.measures)
	return nil
}

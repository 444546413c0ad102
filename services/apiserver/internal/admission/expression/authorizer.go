package expression

import (
	"context"

	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/library"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/authz"
)

// Resource names what a request acts on.
type Resource struct {
	schema.GroupVersionResource
	Subresource, Namespace, Name string
}

// GetName implements library.Resource.
func (r Resource) GetName() string { return r.Name }

// GetNamespace implements library.Resource.
func (r Resource) GetNamespace() string { return r.Namespace }

// GetResource implements library.Resource.
func (r Resource) GetResource() schema.GroupVersionResource { return r.GroupVersionResource }

// GetSubresource implements library.Resource.
func (r Resource) GetSubresource() string { return r.Subresource }

// AuthorizerValues are the variables authorizer and authorizer.requestResource
// for the user of a request.
func AuthorizerValues(asked authz.Authorizer, u *authn.User, resource Resource) (all, request ref.Val) {
	info := userInfo(u)
	adapted := &adapter{asked: asked, user: u, known: map[authz.Attributes]verdict{}}
	return library.NewAuthorizerVal(info, adapted), library.NewResourceAuthorizerVal(info, adapted, resource)
}

func userInfo(u *authn.User) user.Info {
	if u == nil {
		return &user.DefaultInfo{}
	}
	return &user.DefaultInfo{Name: u.Name, UID: u.UID, Groups: u.Groups, Extra: u.Extra}
}

type verdict struct {
	decision authorizer.Decision
	reason   string
	err      error
}

// adapter asks the server's authorizers on behalf of the library's functions,
// each question once.
type adapter struct {
	asked authz.Authorizer
	user  *authn.User
	known map[authz.Attributes]verdict
}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (a *adapter) Authorize(ctx context.Context, q authorizer.Attributes) (authorizer.Decision, string, error) {
	who := a.user
	if info := q.GetUser(); info != nil && (who == nil || info.GetName() != who.Name) {
		// An expression asks for a service account.
		who = &authn.User{Name: info.GetName(), UID: info.GetUID(), Groups: info.GetGroups(), Extra: info.GetExtra()}
	}
	question := authz.Attributes{
		User: who, ResourceRequest: q.IsResourceRequest(), Verb: q.GetVerb(), Namespace: q.GetNamespace(), APIGroup: q.GetAPIGroup(),
		APIVersion: q.GetAPIVersion(), Resource: q.GetResource(), Subresource: q.GetSubresource(), Name: q.GetName(), Path: q.GetPath(),
	}
	if requirements, err := q.GetFieldSelector(); err == nil && len(requirements) > 0 {
		for i, r := range requirements {
			if i > 0 {
				question.FieldSelector += ","
			}
			question.FieldSelector += r.Field + string(r.Operator) + r.Value
		}
	}
	if requirements, err := q.GetLabelSelector(); err == nil && len(requirements) > 0 {
		for i, r := range requirements {
			if i > 0 {
				question.LabelSelector += ","
			}
			question.LabelSelector += r.String()
		}
	}
	if known, ok := a.known[question]; ok {
		return known.decision, known.reason, known.err
	}
	decision, reason, err := a.asked.Authorize(ctx, question)
	answer := verdict{authorizer.DecisionNoOpinion, reason, err}
	switch decision {
	case authz.Allow:
		answer.decision = authorizer.DecisionAllow
	case authz.Deny:
		answer.decision = authorizer.DecisionDeny
	}
	a.known[question] = answer
	return answer.decision, answer.reason, answer.err
}

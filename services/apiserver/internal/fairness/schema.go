package fairness

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolbootstrap "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
)

// Subject is who asks.
type Subject struct {
	User   string
	Groups []string
}

// Attributes are what is asked for.
type Attributes struct {
	Verb       string
	IsResource bool
	// Of resource requests; Namespace is empty for those of the whole cluster.
	APIGroup, Resource, Subresource, Namespace string
	// Of others.
	Path string
}

const serviceAccountPrefix = "system:serviceaccount:"

func mandatorySchemas() []*flowcontrolv1.FlowSchema { return flowcontrolbootstrap.MandatoryFlowSchemas }

func mandatoryLevels() []*flowcontrolv1.PriorityLevelConfiguration {
	return flowcontrolbootstrap.MandatoryPriorityLevelConfigurations
}

// flowSchema is a FlowSchema with its level.
type flowSchema struct {
	*flowcontrolv1.FlowSchema
	level *level
}

// flow tells the schema's flows apart, by user or namespace if it says so.
func (s *flowSchema) flow(request *Request) uint64 {
	distinguisher := ""
	if method := s.Spec.DistinguisherMethod; method != nil {
		switch method.Type {
		case flowcontrolv1.FlowDistinguisherMethodByUserType:
			distinguisher = request.User
		case flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
			distinguisher = request.Namespace
		}
	}
	sum := sha256.Sum256([]byte(s.Name + "\x00" + distinguisher))
	return binary.BigEndian.Uint64(sum[:])
}

func (s *flowSchema) matches(request *Request) bool {
	for i := range s.Spec.Rules {
		rule := &s.Spec.Rules[i]
		if slices.ContainsFunc(rule.Subjects, request.is) && asksFor(rule, &request.Attributes) {
			return true
		}
	}
	return false
}

func (s *Subject) is(subject flowcontrolv1.Subject) bool {
	switch subject.Kind {
	case flowcontrolv1.SubjectKindUser:
		return subject.User != nil && (subject.User.Name == flowcontrolv1.NameAll || subject.User.Name == s.User)
	case flowcontrolv1.SubjectKindGroup:
		return subject.Group != nil && (subject.Group.Name == flowcontrolv1.NameAll || slices.Contains(s.Groups, subject.Group.Name))
	case flowcontrolv1.SubjectKindServiceAccount:
		if subject.ServiceAccount == nil {
			return false
		}
		account, is := strings.CutPrefix(s.User, serviceAccountPrefix)
		namespace, name, _ := strings.Cut(account, ":")
		return is && namespace == subject.ServiceAccount.Namespace && (subject.ServiceAccount.Name == flowcontrolv1.NameAll || subject.ServiceAccount.Name == name)
	}
	return false
}

func asksFor(rule *flowcontrolv1.PolicyRulesWithSubjects, a *Attributes) bool {
	if a.IsResource {
		return slices.ContainsFunc(rule.ResourceRules, a.inResources)
	}
	return slices.ContainsFunc(rule.NonResourceRules, a.inPaths)
}

func (a *Attributes) inResources(rule flowcontrolv1.ResourcePolicyRule) bool {
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	if !oneOf(rule.Verbs, a.Verb) || !oneOf(rule.APIGroups, a.APIGroup) || !oneOf(rule.Resources, resource) {
		return false
	}
	if a.Namespace == "" {
		return rule.ClusterScope
	}
	return oneOf(rule.Namespaces, a.Namespace)
}

func (a *Attributes) inPaths(rule flowcontrolv1.NonResourcePolicyRule) bool {
	return oneOf(rule.Verbs, a.Verb) && slices.ContainsFunc(rule.NonResourceURLs, func(path string) bool {
		prefix, all := strings.CutSuffix(path, "*")
		return path == a.Path || all && strings.HasPrefix(a.Path, prefix)
	})
}

// oneOf says whether a rule's list has the value, or all values.
func oneOf(list []string, value string) bool {
	return slices.Contains(list, "*") || slices.Contains(list, value)
}

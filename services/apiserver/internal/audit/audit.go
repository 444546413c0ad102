// Package audit records who asked for what, when and with which outcome, as a policy
// says, and hands the events to sinks.
package audit

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/sampan-io/sampan/services/apiserver/internal/authn"
	"github.com/sampan-io/sampan/services/apiserver/internal/request"
)

// Event is what sinks get; it does not change any more.
type Event = auditv1.Event

// Sink takes events. An error means that some are lost; it has been counted.
type Sink interface {
	Take(events ...*Event) error
}

// rule is what the policy says of a request.
type rule struct {
	level       audit.Level
	omit        []audit.Stage
	omitManaged bool
}

// Auditor makes the events of requests. A nil Auditor audits nothing.
type Auditor struct {
	rule     func(authorizer.Attributes) rule
	sinks    []Sink
	measures *Measures
}

// New reads a policy (audit.k8s.io/v1) and sends what it asks for to sinks.
func New(policyFile string, measures *Measures, sinks ...Sink) (*Auditor, error) {
	p, err := policy.LoadPolicyFromFile(policyFile)
	if err != nil {
		return nil, err
	}
	evaluator := policy.NewPolicyRuleEvaluator(p)
	return &Auditor{sinks: sinks, measures: measures, rule: func(a authorizer.Attributes) rule {
		c := evaluator.EvaluatePolicyRule(a)
		return rule{level: c.Level, omit: c.OmitStages, omitManaged: c.OmitManagedFields}
	}}, nil
}

// Record is the audit of one request. Its methods do nothing on a nil Record.
type Record struct {
	auditor     *Auditor
	rule        rule
	annotations *request.Annotations

	mu    sync.Mutex
	event Event
}

type recordKey struct{}

// RecordFrom is the audit of a context's request, nil when it is not audited.
func RecordFrom(ctx context.Context) *Record {
	r, _ := ctx.Value(recordKey{}).(*Record)
	return r
}

// Begin starts the audit of a request whose user is known; nil when the policy does
// not ask for it. Context is that of the audited request.
func (a *Auditor) Begin(r *http.Request) (context.Context, *Record) {
	ctx := r.Context()
	info := request.InfoFrom(ctx)
	record := &Record{auditor: a, rule: a.ruleOf(request.UserFrom(ctx), info)}
	a.measures.levels.WithLabelValues(string(record.rule.level)).Inc()
	if record.rule.level == audit.LevelNone {
		return ctx, nil
	}
	ctx, record.annotations = request.WithAnnotations(ctx)
	now := metav1.NowMicro()
	record.event = Event{
		TypeMeta: metav1.TypeMeta{APIVersion: auditv1.SchemeGroupVersion.String(), Kind: "Event"},
		Level:    auditv1.Level(record.rule.level), AuditID: types.UID(request.AuditIDFrom(ctx)), RequestURI: r.URL.RequestURI(), Verb: info.Verb,
		UserAgent: r.UserAgent(), SourceIPs: sources(r), RequestReceivedTimestamp: now,
	}
	if u := request.UserFrom(ctx); u != nil {
		record.event.User = userInfo(u)
	}
	if info.IsResourceRequest {
		record.event.ObjectRef = &auditv1.ObjectReference{
			Resource: info.Resource, Namespace: info.Namespace, Name: info.Name, APIGroup: info.APIGroup, APIVersion: info.APIVersion, Subresource: info.Subresource,
		}
	}
	return context.WithValue(ctx, recordKey{}, record), record
}

func (a *Auditor) ruleOf(u *authn.User, info *request.Info) rule {
	attributes := authorizer.AttributesRecord{
		Verb: info.Verb, Namespace: info.Namespace, APIGroup: info.APIGroup, APIVersion: info.APIVersion, Resource: info.Resource,
		Subresource: info.Subresource, Name: info.Name, ResourceRequest: info.IsResourceRequest, Path: info.Path,
	}
	if u != nil {
		attributes.User = &user.DefaultInfo{Name: u.Name, UID: u.UID, Groups: u.Groups, Extra: u.Extra}
	}
	found := a.rule(attributes)
	if confidential(info) && !found.level.Less(audit.LevelRequest) {
		found.level = audit.LevelMetadata
	}
	return found
}

// confidential says that a request's or its answer's object is itself a secret. Events
// about it never hold bodies, whatever the policy says: those who read the audit need
// not be those who may read secrets.
func confidential(info *request.Info) bool {
	switch info.APIGroup {
	case "":
		return info.Resource == "secrets" || info.Resource == "serviceaccounts" && info.Subresource == "token"
	case "authentication.k8s.io":
		return info.Resource == "tokenreviews"
	}
	return false
}

func userInfo(u *authn.User) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.Name, UID: u.UID, Groups: u.Groups}
	for key, values := range u.Extra {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[key] = values
	}
	return info
}

// sources are the addresses that a request says it came by, and the one it did.
func sources(r *http.Request) []string {
	var out []string
	for part := range strings.SplitSeq(r.Header.Get("X-Forwarded-For"), ",") {
		if ip := net.ParseIP(strings.TrimSpace(part)); ip != nil {
			out = append(out, ip.String())
		}
	}
	if ip := net.ParseIP(strings.TrimSpace(r.Header.Get("X-Real-Ip"))); ip != nil && !slices.Contains(out, ip.String()) {
		out = append(out, ip.String())
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil && !slices.Contains(out, host) {
		out = append(out, host)
	}
	return out
}

// Impersonated notes as whom the user acts.
func (r *Record) Impersonated(u *authn.User) {
	if r == nil {
		return
	}
	info := userInfo(u)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event.ImpersonatedUser = &info
}

// bodies says whether the request's body and the answer's are wanted.
func (r *Record) bodies() (in, out bool) {
	return !r.rule.level.Less(audit.LevelRequest), !r.rule.level.Less(audit.LevelRequestResponse)
}

// outcome is what is known of an answer.
type outcome struct {
	status            *metav1.Status
	request, response []byte // JSON, nil when not wanted
}

// emit sends the event of a stage.
func (r *Record) emit(stage audit.Stage, o outcome) error {
	if slices.Contains(r.rule.omit, stage) {
		return nil
	}
	r.mu.Lock()
	if o.status != nil {
		r.event.ResponseStatus = o.status
	}
	if o.request != nil {
		r.event.RequestObject = rawObject(o.request)
	}
	if o.response != nil {
		r.event.ResponseObject = rawObject(o.response)
	}
	event := r.event
	r.mu.Unlock()
	event.Stage, event.StageTimestamp = auditv1.Stage(stage), metav1.NewMicroTime(time.Now())
	if list := r.annotations.List(); len(list) > 0 {
		event.Annotations = list
	}
	r.auditor.measures.events.Inc()
	var failed error
	for _, sink := range r.auditor.sinks {
		if err := sink.Take(&event); err != nil {
			failed = err
		}
	}
	return failed
}

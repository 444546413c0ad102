package fairness_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	flowcontrolbootstrap "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/utils/clock"

	"github.com/sampan-io/sampan/services/apiserver/internal/fairness"
)

const patience = 15 * time.Second

func newDispatcher(t *testing.T, seats int, schemas []*flowcontrolv1.FlowSchema, levels ...*flowcontrolv1.PriorityLevelConfiguration) *fairness.Dispatcher {
	t.Helper()
	d := fairness.New(seats, patience, fairness.NewMetrics(prometheus.NewRegistry()), clock.RealClock{})
	if schemas != nil {
		d.Configure(append(schemas, flowcontrolbootstrap.MandatoryFlowSchemas...), append(levels, flowcontrolbootstrap.MandatoryPriorityLevelConfigurations...))
	}
	return d
}

// queued is a level that queues: so many shares, queues, hand and length.
func queued(name string, shares, queues, hand, length int32) *flowcontrolv1.PriorityLevelConfiguration {
	return &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited, Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: &shares, BorrowingLimitPercent: new(int32), LimitResponse: flowcontrolv1.LimitResponse{
				Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{Queues: queues, HandSize: hand, QueueLengthLimit: length},
			},
		}},
	}
}

// users is a schema that sends a user's requests, or all users', into a level,
// each user in a flow of their own.
func users(user, level string, precedence int32) *flowcontrolv1.FlowSchema {
	return &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: level + "-of-" + user},
		Spec: flowcontrolv1.FlowSchemaSpec{
			MatchingPrecedence: precedence, PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level},
			DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: user}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"},
				}},
			}},
		},
	}
}

func request(user string) *fairness.Request {
	return &fairness.Request{
		Subject:    fairness.Subject{User: user, Groups: []string{"system:authenticated"}},
		Attributes: fairness.Attributes{Verb: "get", IsResource: true, Resource: "pods", Namespace: "default"},
	}
}

func mustAcquire(t *testing.T, d *fairness.Dispatcher, r *fairness.Request) func() {
	t.Helper()
	_, release, err := d.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func assertRefused(t *testing.T, err error, reason string) {
	t.Helper()
	var refused *fairness.RefusedError
	if !errors.As(err, &refused) || refused.Reason != reason {
		t.Errorf("the error is %v, not %s", err, reason)
	}
}

func TestSuggestedConfigurationClassifiesAsUpstream(t *testing.T) {
	d := newDispatcher(t, 600, flowcontrolbootstrap.SuggestedFlowSchemas, flowcontrolbootstrap.SuggestedPriorityLevelConfigurations...)
	for _, c := range []struct {
		user, group string
		attributes  fairness.Attributes
		level       string
	}{
		{"admin", "system:masters", fairness.Attributes{Verb: "list", IsResource: true, Resource: "pods"}, "exempt"},
		{"system:node:a", "system:nodes", fairness.Attributes{Verb: "update", IsResource: true, Resource: "nodes", Subresource: "status"}, "node-high"},
		{"system:node:a", "system:nodes", fairness.Attributes{Verb: "update", IsResource: true, APIGroup: "coordination.k8s.io", Resource: "leases", Namespace: "kube-node-lease"}, "node-high"},
		{"system:node:a", "system:nodes", fairness.Attributes{Verb: "get", IsResource: true, Resource: "secrets", Namespace: "x"}, "system"},
		{"system:kube-scheduler", "", fairness.Attributes{Verb: "update", IsResource: true, APIGroup: "coordination.k8s.io", Resource: "leases", Namespace: "kube-system"}, "leader-election"},
		{"system:kube-scheduler", "", fairness.Attributes{Verb: "list", IsResource: true, Resource: "pods"}, "workload-high"},
		{"system:serviceaccount:kube-system:deployment-controller", "system:serviceaccounts:kube-system", fairness.Attributes{Verb: "list", IsResource: true, Resource: "pods"}, "workload-high"},
		{"system:serviceaccount:x:y", "system:serviceaccounts", fairness.Attributes{Verb: "list", IsResource: true, Resource: "pods"}, "workload-low"},
		{"jane", "system:authenticated", fairness.Attributes{Verb: "list", IsResource: true, Resource: "pods"}, "global-default"},
		{"system:anonymous", "system:unauthenticated", fairness.Attributes{Verb: "get", Path: "/healthz"}, "exempt"},
	} {
		classified, release, err := d.Acquire(t.Context(), &fairness.Request{Subject: fairness.Subject{User: c.user, Groups: []string{c.group, "system:authenticated"}}, Attributes: c.attributes})
		if err != nil {
			t.Fatal(err)
		}
		release()
		if classified.Level != c.level {
			t.Errorf("%s %+v falls into %s, not %s", c.user, c.attributes, classified.Level, c.level)
		}
	}
}

func TestFloodOfOneLevelLeavesTheOthersTheirSeats(t *testing.T) {
	d := newDispatcher(t, 20, []*flowcontrolv1.FlowSchema{users("*", "low", 900), users("node", "high", 100)}, queued("low", 45, 4, 2, 100), queued("high", 45, 4, 2, 100))
	for range 9 {
		mustAcquire(t, d, request("flood"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var flooding sync.WaitGroup
	for range 50 {
		flooding.Go(func() { _, _, _ = d.Acquire(ctx, request("flood")) })
	}
	for range 9 { // what is the other's is free at once
		mustAcquire(t, d, request("node"))
	}
	cancel()
	flooding.Wait()
}

func TestFlowsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 2, []*flowcontrolv1.FlowSchema{users("*", "level", 900)}, queued("level", 95, 64, 6, 100))
		// The level has both seats, so that one request at a time is left of them.
		mustAcquire(t, d, request("other"))
		release := mustAcquire(t, d, request("flood"))
		var mu sync.Mutex
		var order []string
		enter := func(user string) {
			go func() {
				_, release, err := d.Acquire(t.Context(), request(user))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, user)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
				release()
			}()
			synctest.Wait()
		}
		for range 20 {
			enter("flood")
		}
		enter("jane")
		release()
		time.Sleep(time.Second)
		synctest.Wait()
		for place, user := range order {
			if user == "jane" && place > 2 {
				t.Errorf("jane is served behind %d requests of the flood", place)
			}
		}
		if len(order) != 21 {
			t.Errorf("%d requests were served", len(order))
		}
	})
}

func TestLevelBorrowsWhatOthersLend(t *testing.T) {
	lender, borrower := queued("lender", 50, 4, 2, 10), queued("borrower", 45, 4, 2, 10)
	lender.Spec.Limited.LendablePercent = new(int32(50))
	borrower.Spec.Limited.BorrowingLimitPercent = nil
	d := newDispatcher(t, 20, []*flowcontrolv1.FlowSchema{users("*", "borrower", 900), users("lender", "lender", 100)}, lender, borrower)
	var releases []func()
	for range 14 { // nine of its own and five that are lent
		releases = append(releases, mustAcquire(t, d, request("x")))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, _, err := d.Acquire(ctx, request("x"))
	assertRefused(t, err, fairness.ReasonCancelled)
	for range 5 { // what is not lent is still there
		mustAcquire(t, d, request("lender"))
	}
	for _, release := range releases {
		release()
	}
	for range 5 { // and what was lent comes back
		mustAcquire(t, d, request("lender"))
	}
}

func TestFullQueueRefuses(t *testing.T) {
	d := newDispatcher(t, 1, []*flowcontrolv1.FlowSchema{users("*", "level", 900)}, queued("level", 95, 1, 1, 2))
	mustAcquire(t, d, request("x"))
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 3)
	for range 3 {
		go func() {
			_, _, err := d.Acquire(ctx, request("x"))
			waiting <- err
		}()
	}
	assertRefused(t, <-waiting, fairness.ReasonQueueFull) // the third, whichever it is
	cancel()
	for range 2 {
		assertRefused(t, <-waiting, fairness.ReasonCancelled)
	}
}

func TestRequestWaitsForALimitedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, 1, []*flowcontrolv1.FlowSchema{users("*", "level", 900)}, queued("level", 95, 1, 1, 2))
		mustAcquire(t, d, request("x"))
		began := time.Now()
		_, _, err := d.Acquire(t.Context(), request("x"))
		assertRefused(t, err, fairness.ReasonTimeOut)
		if waited := time.Since(began); waited != patience {
			t.Errorf("it waited %s", waited)
		}
	})
}

func TestLevelWithoutQueuesRefusesAtOnce(t *testing.T) {
	d := newDispatcher(t, 1, nil) // only what must be there: catch-all refuses
	release := mustAcquire(t, d, request("x"))
	_, _, err := d.Acquire(t.Context(), request("x"))
	assertRefused(t, err, fairness.ReasonConcurrencyLimit)
	release()
	release() // a second time does nothing
	mustAcquire(t, d, request("x"))
	_, _, err = d.Acquire(t.Context(), request("x"))
	assertRefused(t, err, fairness.ReasonConcurrencyLimit)
}

func TestLargeListTakesSeveralSeats(t *testing.T) {
	d := newDispatcher(t, 100, []*flowcontrolv1.FlowSchema{users("*", "level", 900)}, queued("level", 95, 1, 1, 1))
	large := request("x")
	large.Objects = 5000
	for range 9 { // ten seats each, of 95
		mustAcquire(t, d, large)
	}
	for range 5 {
		mustAcquire(t, d, request("x"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, _, err := d.Acquire(ctx, request("x"))
	assertRefused(t, err, fairness.ReasonCancelled)
}

// TestConfigurationChangesUnderWay changes limits and takes levels away while
// requests wait and run: all of them are answered.
func TestConfigurationChangesUnderWay(t *testing.T) {
	schemas := []*flowcontrolv1.FlowSchema{users("*", "level", 900)}
	d := newDispatcher(t, 4, schemas, queued("level", 95, 8, 2, 1000))
	var requests sync.WaitGroup
	served := make(chan struct{}, 400)
	for i := range 400 {
		requests.Go(func() {
			_, release, err := d.Acquire(t.Context(), request(fmt.Sprint("user", i%7)))
			if err == nil {
				release()
				served <- struct{}{}
			}
		})
		switch i % 40 {
		case 10:
			d.Configure(append(schemas, flowcontrolbootstrap.MandatoryFlowSchemas...), append([]*flowcontrolv1.PriorityLevelConfiguration{queued("level", 20, 2, 1, 1000)}, flowcontrolbootstrap.MandatoryPriorityLevelConfigurations...))
		case 20:
			d.Configure(flowcontrolbootstrap.MandatoryFlowSchemas, flowcontrolbootstrap.MandatoryPriorityLevelConfigurations)
		case 30:
			d.Configure(append(schemas, flowcontrolbootstrap.MandatoryFlowSchemas...), append([]*flowcontrolv1.PriorityLevelConfiguration{queued("level", 95, 8, 2, 1000)}, flowcontrolbootstrap.MandatoryPriorityLevelConfigurations...))
		}
	}
	requests.Wait()
	if len(served) == 0 {
		t.Error("nothing was served")
	}
	for range 3 { // all seats are back
		mustAcquire(t, d, request("x"))
	}
}

package events

import (
	"context"
	"math/rand"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/core"
)

// TestConversionLosesNothing fills events at random, so that a field that is
// new upstream shows here.
func TestConversionLosesNothing(t *testing.T) {
	fill := randfill.New().NilChance(0.3).RandSource(rand.NewSource(1))
	for range 100 {
		var e eventsv1.Event
		fill.Fill(&e)
		e.TypeMeta = metav1.TypeMeta{Kind: "Event", APIVersion: "events.k8s.io/v1"}
		if got := FromCore(ToCore(&e)); !apiequality.Semantic.DeepEqual(got, &e) {
			t.Fatalf("%+v became %+v", e, got)
		}
		var c corev1.Event
		fill.Fill(&c)
		c.TypeMeta = metav1.TypeMeta{Kind: "Event", APIVersion: "v1"}
		if got := ToCore(FromCore(&c)); !apiequality.Semantic.DeepEqual(got, &c) {
			t.Fatalf("%+v became %+v", c, got)
		}
	}
}

func TestBothGroupsShareAStore(t *testing.T) {
	ours, theirs := Events(time.Hour), core.Events(time.Hour)
	if ours.KeyPrefix != theirs.KeyPrefix || ours.StoredVersion != theirs.StoredVersion {
		t.Errorf("%s in %s and %s in %s", ours.KeyPrefix, ours.StoredVersion, theirs.KeyPrefix, theirs.StoredVersion)
	}
	stored := &corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "web"}, ReportingController: "kubelet"}
	if set := ours.Fields(stored); set["regarding.name"] != "web" || set["reportingController"] != "kubelet" {
		t.Errorf("fields are %v", set)
	}
	if _, err := ours.FromStored(t.Context(), &corev1.Pod{}); err == nil {
		t.Error("a pod was converted to an event")
	}
}

func event(changes ...func(*eventsv1.Event)) *eventsv1.Event {
	e := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web.1"},
		EventTime:  metav1.NewMicroTime(time.Unix(1700000000, 0)), Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"},
		ReportingController: "example.com/c", ReportingInstance: "c-1", Action: "Start", Reason: "Started", Type: "Normal",
	}
	for _, change := range changes {
		change(e)
	}
	return e
}

func TestValidation(t *testing.T) {
	for want, e := range map[string]*eventsv1.Event{
		"": event(),
		`regarding.namespace: Invalid value: "other": does not match event.namespace`: event(func(e *eventsv1.Event) { e.Regarding.Namespace = "other" }),
		"eventTime: Required value":                                    event(func(e *eventsv1.Event) { e.EventTime = metav1.MicroTime{} }),
		"reportingInstance: Required value":                            event(func(e *eventsv1.Event) { e.ReportingInstance = "" }),
		`reason: Invalid value: "": can have at most 128 characters`:   event(func(e *eventsv1.Event) { e.Reason = strings.Repeat("x", 129) }),
		`message: Invalid value: "": can have at most 1024 characters`: event(func(e *eventsv1.Event) { e.Note = strings.Repeat("x", 1025) }),
		`type: Invalid value: "": has invalid value: Bad`:              event(func(e *eventsv1.Event) { e.Type = "Bad" }),
		`count: Invalid value: "": needs to be unset`:                  event(func(e *eventsv1.Event) { e.DeprecatedCount = 1 }),
		`series.count: Invalid value: "": should be at least 2`: event(func(e *eventsv1.Event) {
			e.Series = &eventsv1.EventSeries{Count: 1, LastObservedTime: metav1.NowMicro()}
		}),
	} {
		got := ""
		if err := Events(time.Hour).Strategy.Validate(context.Background(), e).ToAggregate(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestOnlyTheSeriesGoesOn(t *testing.T) {
	s := Events(time.Hour).Strategy
	on := event(func(e *eventsv1.Event) {
		e.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: metav1.NowMicro()}
	})
	if errs := s.ValidateUpdate(context.Background(), on, event()); len(errs) > 0 {
		t.Error(errs)
	}
	changed := event(func(e *eventsv1.Event) { e.Note = "other" })
	err := s.ValidateUpdate(context.Background(), changed, event()).ToAggregate()
	if err == nil || err.Error() != `message: Invalid value: "other": field is immutable` {
		t.Errorf("got %v", err)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	group   = "fleet.example.com"
	version = "v1"
	root    = "/apis/" + group + "/" + version
)

// Boat is the kind that is served.
type Boat struct {
	metav1.TypeMeta   `json:""`
	metav1.ObjectMeta `json:"metadata"`
	Spec              BoatSpec `json:"spec"`
}

// BoatSpec is what a boat is like.
type BoatSpec struct {
	Masts int `json:"masts"`
}

// boatList is a list of boats.
type boatList struct {
	metav1.TypeMeta `json:""`
	metav1.ListMeta `json:"metadata"`
	Items           []Boat `json:"items"`
}

// event is one line of a watch.
type event struct {
	Type   watch.EventType `json:"type"`
	Object Boat            `json:"object"`
}

// fleet keeps the boats and all that happened to them.
type fleet struct {
	*http.ServeMux

	mu      sync.Mutex
	boats   map[types.NamespacedName]Boat
	history []event       // an event's resource version is its place, from 1
	changed chan struct{} // is closed, and made anew, with each event
}

func newFleet() *fleet {
	f := &fleet{ServeMux: http.NewServeMux(), boats: map[types.NamespacedName]Boat{}, changed: make(chan struct{})}
	f.describe()
	f.HandleFunc("GET "+root+"/boats", f.list)
	f.HandleFunc("GET "+root+"/namespaces/{namespace}/boats", f.list)
	f.HandleFunc("POST "+root+"/namespaces/{namespace}/boats", f.create)
	f.HandleFunc("GET "+root+"/namespaces/{namespace}/boats/{name}", f.get)
	f.HandleFunc("DELETE "+root+"/namespaces/{namespace}/boats/{name}", f.delete)
	f.HandleFunc("GET "+root+"/namespaces/{namespace}/boats/{name}/radio", f.radio)
	return f
}

func key(r *http.Request) types.NamespacedName {
	return types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

// record adds an event. Caller must hold mu.
func (f *fleet) record(kind watch.EventType, boat *Boat) {
	boat.ResourceVersion = strconv.Itoa(len(f.history) + 1)
	f.history = append(f.history, event{kind, *boat})
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fleet) list(w http.ResponseWriter, r *http.Request) {
	if watching, _ := strconv.ParseBool(r.URL.Query().Get("watch")); watching {
		f.watch(w, r)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := boatList{TypeMeta: metav1.TypeMeta{APIVersion: group + "/" + version, Kind: "BoatList"}, Items: []Boat{}}
	out.ResourceVersion = strconv.Itoa(len(f.history))
	for name, boat := range f.boats {
		if namespace := r.PathValue("namespace"); namespace == "" || namespace == name.Namespace {
			out.Items = append(out.Items, boat)
		}
	}
	slices.SortFunc(out.Items, func(a, b Boat) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	writeJSON(w, http.StatusOK, out)
}

// watch sends what happens after a resource version.
func (f *fleet) watch(w http.ResponseWriter, r *http.Request) {
	next, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		next = 0
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	for {
		f.mu.Lock()
		events, changed := f.history[min(next, len(f.history)):], f.changed
		f.mu.Unlock()
		for _, e := range events {
			next++
			if namespace := r.PathValue("namespace"); namespace == "" || namespace == e.Object.Namespace {
				_ = json.NewEncoder(w).Encode(e)
			}
		}
		_ = flush.Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func (f *fleet) create(w http.ResponseWriter, r *http.Request) {
	var boat Boat
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&boat); err != nil || boat.Name == "" {
		writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, fmt.Sprintf("a boat with a name is expected: %v", err))
		return
	}
	boat.TypeMeta = metav1.TypeMeta{APIVersion: group + "/" + version, Kind: "Boat"}
	boat.Namespace, boat.UID, boat.CreationTimestamp = r.PathValue("namespace"), uuid.NewUUID(), metav1.NewTime(time.Now())
	boat.Annotations = map[string]string{"fleet.example.com/launched-by": fmt.Sprint(r.Context().Value(userKey{}))}
	f.mu.Lock()
	defer f.mu.Unlock()
	name := types.NamespacedName{Namespace: boat.Namespace, Name: boat.Name}
	if _, taken := f.boats[name]; taken {
		writeStatus(w, http.StatusConflict, metav1.StatusReasonAlreadyExists, fmt.Sprintf("boats.%s %q already exists", group, boat.Name))
		return
	}
	f.record(watch.Added, &boat)
	f.boats[name] = boat
	writeJSON(w, http.StatusCreated, boat)
}

func (f *fleet) get(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	boat, ok := f.boats[key(r)]
	if !ok {
		writeStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("boats.%s %q not found", group, r.PathValue("name")))
		return
	}
	writeJSON(w, http.StatusOK, boat)
}

func (f *fleet) delete(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	boat, ok := f.boats[key(r)]
	if !ok {
		writeStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("boats.%s %q not found", group, r.PathValue("name")))
		return
	}
	delete(f.boats, key(r))
	f.record(watch.Deleted, &boat)
	writeJSON(w, http.StatusOK, boat)
}

// radio answers with what it hears, over an upgraded connection.
func (f *fleet) radio(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "radio" {
		writeStatus(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "Upgrade: radio is expected")
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: radio\r\n\r\n")
	_, _ = io.Copy(conn, buffered)
}

func writeJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}

func writeStatus(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	writeJSON(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

// Package server answers the node agent's HTTPS API: the kubelet's.
package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/sampan-io/sampan/services/internal/delegated"
	"github.com/sampan-io/sampan/services/node-agent/internal/podworker"
)

// Pods finds the node's pods.
type Pods interface {
	Pods() []*corev1.Pod
	State(namespace, name string, uid types.UID) (podworker.State, bool)
	States() []podworker.State
}

// Summarizer measures the node and its pods.
type Summarizer interface {
	Summary(ctx context.Context) (*stats.Summary, error)
}

// Config is what a Server needs.
type Config struct {
	Gate    *delegated.Gate
	Pods    Pods
	Runtime runtimeapi.RuntimeServiceClient
	LogsDir string
	Stats   Summarizer
	Health  http.Handler // /healthz
	// Metrics answers each path of metrics; see metricsPaths.
	Metrics map[string]http.Handler
	Config  any // what /configz shows
	Log     *slog.Logger
}

// Server is the API.
type Server struct {
	Config
}

// Handler is the whole API, guarded.
func Handler(cfg Config) http.Handler {
	s := &Server{cfg}
	r := chi.NewRouter()
	for _, path := range []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*"} {
		r.Handle(path, cfg.Health)
	}
	r.Get("/pods", s.pods)
	r.Get("/pods/", s.pods)
	r.Get("/runningpods/", s.runningPods)
	r.Get("/configz", s.configz)
	r.Get("/stats/summary", s.summary)
	for path, handler := range cfg.Metrics {
		r.Method(http.MethodGet, path, handler)
	}
	r.Get("/containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	for _, uid := range []string{"", "/{uid}"} {
		r.HandleFunc("/exec/{namespace}/{pod}"+uid+"/{container}", s.exec)
		r.HandleFunc("/attach/{namespace}/{pod}"+uid+"/{container}", s.attach)
		r.HandleFunc("/portForward/{namespace}/{pod}"+uid, s.portForward)
		r.Post("/run/{namespace}/{pod}"+uid+"/{container}", s.run)
	}
	r.HandleFunc("/checkpoint/*", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "checkpointing containers is not supported by this node", http.StatusNotImplemented)
	})
	return cfg.Gate.Wrap(attributes, r)
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	s.writePods(w, s.Pods.Pods())
}

func (s *Server) runningPods(w http.ResponseWriter, _ *http.Request) {
	var running []*corev1.Pod
	for _, state := range s.Pods.States() {
		if len(state.Runtime.Running()) > 0 {
			running = append(running, state.Pod)
		}
	}
	s.writePods(w, running)
}

func (s *Server) writePods(w http.ResponseWriter, pods []*corev1.Pod) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	for _, pod := range pods {
		list.Items = append(list.Items, *pod)
	}
	s.writeJSON(w, list)
}

func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	s.writeJSON(w, map[string]any{"kubeletconfig": s.Config.Config})
}

func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	summary, err := s.Stats.Summary(r.Context())
	if err != nil {
		s.Log.WarnContext(r.Context(), "Measuring the node", "err", err)
		http.Error(w, "Internal Error: the node could not be measured", http.StatusInternalServerError)
		return
	}
	s.writeJSON(w, summary)
}

func (s *Server) writeJSON(w http.ResponseWriter, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

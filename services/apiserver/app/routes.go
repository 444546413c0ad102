package app

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"slices"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sampan-io/sampan/services/apiserver/internal/discovery"
	"github.com/sampan-io/sampan/services/apiserver/internal/handlers"
	"github.com/sampan-io/sampan/services/apiserver/internal/openapi"
	"github.com/sampan-io/sampan/services/apiserver/internal/tokens"
	"github.com/sampan-io/sampan/services/internal/component"
)

// routes are all paths that the server answers.
func (s *server) routes(described *discovery.Service, schemas *openapi.Service, api *handlers.API, health *component.Health, metrics *prometheus.Registry, url string) (http.Handler, error) {
	keys, err := tokens.NewDiscovery(s.tokens, s.Tokens.JWKSURI, url)
	if err != nil {
		return nil, err
	}

	router := chi.NewRouter()
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		handler := health.Handler(path)
		router.Handle(path, handler)
		router.Handle(path+"/*", handler)
	}
	resources := s.aggregator.Handler(described.Handler(api))
	for _, path := range []string{"/api", "/api/*", "/apis", "/apis/*"} {
		router.Handle(path, resources)
	}
	router.Handle("/openapi/*", s.aggregator.Handler(schemas.Handler()))
	router.Get("/version", version)
	router.Get("/version/", version)
	router.Handle("/metrics", component.MetricsHandler(metrics))
	router.Get(tokens.ConfigurationPath, keys.ServeConfiguration)
	router.Get(tokens.KeysPath, keys.ServeKeys)
	if s.Serving.Profiling {
		profiles(router)
	}
	router.Get("/", index(described.Groups))
	router.NotFound(handlers.NotFound)
	router.MethodNotAllowed(handlers.NotFound)
	return router, nil
}

func profiles(router chi.Router) {
	router.HandleFunc("/debug/pprof", pprof.Index)
	router.HandleFunc("/debug/pprof/*", pprof.Index)
	router.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	router.HandleFunc("/debug/pprof/profile", pprof.Profile)
	router.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	router.HandleFunc("/debug/pprof/trace", pprof.Trace)
}

func version(w http.ResponseWriter, _ *http.Request) {
	data, err := json.MarshalIndent(component.Version(), "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

// index lists the paths.
func index(groups func() []string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		paths := append(groups(), "/healthz", "/livez", "/readyz", "/metrics", "/openapi/v2", "/openapi/v3", "/version",
			tokens.ConfigurationPath, tokens.KeysPath)
		slices.Sort(paths)
		data, err := json.MarshalIndent(map[string][]string{"paths": paths}, "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(data)
	}
}

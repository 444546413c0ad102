package app_test

import (
	"crypto/tls"
	"io"
	"net/http"
)

// get asks the agent's own API as the administrator.
func (s *site) get(path string) (code int, body string) {
	s.t.Helper()
	return s.ask(http.MethodGet, path, true)
}

// ask is a request to the agent's own API, with the administrator's certificate or
// without any.
func (s *site) ask(method, path string, known bool) (code int, body string) {
	s.t.Helper()
	config := &tls.Config{InsecureSkipVerify: true} // it has signed its certificate itself
	if known {
		pair, err := tls.X509KeyPair(s.api.Config.CertData, s.api.Config.KeyData)
		if err != nil {
			s.t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DialContext: s.dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(s.t.Context(), method, "https://127.0.0.1:10250"+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

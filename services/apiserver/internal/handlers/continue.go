package handlers

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
)

// continuation is where a list goes on.
type continuation struct {
	// Revision of the first part; negative for a list that goes on without being
	// consistent with it.
	Revision int64
	After    string // relative key of the last object
}

// token is a continuation on the wire, in upstream's form.
type token struct {
	APIVersion      string `json:"v"`
	ResourceVersion int64  `json:"rv"`
	StartKey        string `json:"start"`
}

const tokenVersion = "meta.k8s.io/v1"

func (c continuation) encode() string {
	data, err := json.Marshal(token{APIVersion: tokenVersion, ResourceVersion: c.Revision, StartKey: c.After + "\x00"})
	if err != nil { // strings and numbers always encode
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

var errToken = errors.New("continue key is not valid")

// decodeContinue reads a token. Clients may have made it up: its key can only
// be one below the list's own prefix.
func decodeContinue(text string) (continuation, error) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return continuation{}, fmt.Errorf("%w: %w", errToken, err)
	}
	var t token
	if err := json.Unmarshal(data, &t); err != nil {
		return continuation{}, fmt.Errorf("%w: %w", errToken, err)
	}
	switch {
	case t.APIVersion != tokenVersion:
		return continuation{}, fmt.Errorf("%w: server does not recognize this encoded version %v", errToken, t.APIVersion)
	case t.ResourceVersion == 0:
		return continuation{}, fmt.Errorf("%w: incorrect encoded start resourceVersion (version meta.k8s.io/v1)", errToken)
	case t.StartKey == "":
		return continuation{}, fmt.Errorf("%w: encoded start key empty (version meta.k8s.io/v1)", errToken)
	}
	key := "/" + strings.TrimPrefix(t.StartKey, "/")
	if path.Clean(key) != key {
		return continuation{}, fmt.Errorf("%w: %q", errToken, t.StartKey)
	}
	after := strings.TrimSuffix(key[1:], "\x00")
	if after == "" || strings.Contains(after, "\x00") {
		return continuation{}, fmt.Errorf("%w: %q", errToken, t.StartKey)
	}
	return continuation{Revision: t.ResourceVersion, After: after}, nil
}

package images

import (
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// Normalize gives a reference its full form: docker.io/library/busybox:latest for
// busybox.
func Normalize(ref string) (string, error) {
	parsed, err := parse(ref)
	if err != nil {
		return "", err
	}
	return familiar(parsed.Name()), nil
}

func parse(ref string) (name.Reference, error) {
	// name@digest wins over a tag between them, as in containerd.
	if at := strings.IndexByte(ref, '@'); at >= 0 {
		if colon := strings.LastIndexByte(ref[:at], ':'); colon > strings.LastIndexByte(ref[:at], '/') {
			ref = ref[:colon] + ref[at:]
		}
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("image reference %q: %w", ref, err)
	}
	return parsed, nil
}

// familiar writes Docker's registry the way everyone but its own client does.
func familiar(name string) string {
	if rest, ok := strings.CutPrefix(name, "index.docker.io/"); ok {
		return "docker.io/" + rest
	}
	return name
}

package ocispec

import (
	"encoding/json"
	"fmt"
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (b *builder) seccomp() error {
	if b.privileged() {
		return nil
	}
	profile := b.security.GetSeccomp()
	if profile == nil {
		return nil
	}
	switch profile.GetProfileType() {
	case runtimeapi.SecurityProfile_Unconfined:
		return nil
	case runtimeapi.SecurityProfile_RuntimeDefault:
		b.spec.Linux.Seccomp = DefaultSeccomp(b.spec.Process.Capabilities.Bounding)
		return nil
	case runtimeapi.SecurityProfile_Localhost:
		loaded, err := loadSeccomp(profile.GetLocalhostRef())
		if err != nil {
			return fmt.Errorf("seccomp profile %q: %w", profile.GetLocalhostRef(), err)
		}
		b.spec.Linux.Seccomp = loaded
		return nil
	}
	return fmt.Errorf("unknown seccomp profile type %v", profile.GetProfileType())
}

// loadSeccomp refuses an empty profile, which would not confine anything.
func loadSeccomp(path string) (*specs.LinuxSeccomp, error) {
	if path == "" {
		return nil, fmt.Errorf("no file is named")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var profile specs.LinuxSeccomp
	if err := json.Unmarshal(data, &profile); err != nil {
		return nil, err
	}
	if profile.DefaultAction == "" {
		return nil, fmt.Errorf("it is empty: defaultAction is missing")
	}
	return &profile, nil
}

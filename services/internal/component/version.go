package component

import (
	"runtime"

	"k8s.io/apimachinery/pkg/version"
)

// KubernetesVersion is the version of the Kubernetes API that Sampan speaks.
const KubernetesVersion = "v1.37.2"

// gitCommit and buildDate are set by the Makefile with -ldflags -X.
var (
	gitCommit = "unknown"
	buildDate = "1970-01-01T00:00:00Z"
)

// Version is what /version, kubernetes_build_info and --version say.
func Version() version.Info {
	return version.Info{
		Major: "1", Minor: "37",
		GitVersion:   KubernetesVersion + "+sampan",
		GitCommit:    gitCommit,
		GitTreeState: "clean",
		BuildDate:    buildDate,
		GoVersion:    runtime.Version(),
		Compiler:     runtime.Compiler,
		Platform:     runtime.GOOS + "/" + runtime.GOARCH,
	}
}

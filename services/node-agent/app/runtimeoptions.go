package app

import (
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/sampan-io/sampan/services/node-agent/internal/network"
	"github.com/sampan-io/sampan/services/node-agent/internal/runtime"
)

// runtimeOptions are the built-in runtime's, whoever runs it.
type runtimeOptions struct {
	tools struct{ runc, conmon, pause, cni, cniConf string }
	// handlers are further OCI runtimes by the name that a RuntimeClass gives.
	handlers map[string]string
	// registries has registry configuration in containerd's form.
	registries   string
	pinnedImages []string
}

func (o *runtimeOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.tools.runc, "runc", "", "path of runc; empty looks beside this program and in PATH")
	fs.StringVar(&o.tools.conmon, "conmon", "", "path of conmon; empty looks beside this program and in PATH")
	fs.StringVar(&o.tools.pause, "pause", "", "path of the static pause program; empty looks beside this program")
	fs.StringVar(&o.tools.cni, "cni-bin-dir", "", "directory of CNI plugins; empty looks for cni beside this program and for /opt/cni/bin")
	fs.StringVar(&o.tools.cniConf, "cni-conf-dir", "", "directory of CNI configuration, which is the operator's then; empty makes a bridge for the node's pod CIDR")
	fs.StringToStringVar(&o.handlers, "runtime-handler", nil, "further OCI runtime, name=path; a RuntimeClass chooses it by the name")
	fs.StringVar(&o.registries, "registry-hosts-dir", "", "directory of registry configuration in containerd's form: <registry>/hosts.toml")
	fs.StringSliceVar(&o.pinnedImages, "pinned-image", nil, "image that is never removed to make room; may be repeated")
}

// config is what of the runtime's configuration the flags say.
func (o *runtimeOptions) config(log *slog.Logger) (runtime.Config, error) {
	runc, err := findTool(o.tools.runc, "runc")
	if err != nil {
		return runtime.Config{}, err
	}
	conmon, err := findTool(o.tools.conmon, "conmon")
	if err != nil {
		return runtime.Config{}, err
	}
	pause, err := findTool(o.tools.pause, "pause")
	if err != nil {
		pause = "" // the runtime refuses pods that need it
	}
	return runtime.Config{
		Runc: runc, Conmon: conmon, Pause: pause, Handlers: o.handlers,
		Network:  network.Config{PluginDirs: findPlugins(o.tools.cni), ConfDir: o.tools.cniConf},
		HostsDir: o.registries, PinnedImages: o.pinnedImages, Log: log,
	}, nil
}

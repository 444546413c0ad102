// Package app wires the node agent.
package app

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/sampan-io/sampan/services/internal/client"
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/node-agent/internal/eviction"
	"github.com/sampan-io/sampan/services/node-agent/internal/identity"
	"github.com/sampan-io/sampan/services/node-agent/internal/kubeletconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/shutdown"
)

// Options is what the flags say. Their names are upstream's where upstream has
// them; a flag that is given wins over the configuration file.
type Options struct {
	client     client.Options
	configFile string
	flags      *pflag.FlagSet

	hostname string
	nodeIP   string
	rootDir  string
	runDir   string

	address       string
	port          int
	certFile      string
	keyFile       string
	clientCA      string
	certDir       string
	bootstrap     string
	rotateClient  bool
	rotateServing bool
	health        struct {
		address string
		port    int
	}

	clusterDNS    []string
	clusterDomain string
	resolvConf    string
	cgroupRoot    string
	endpoint      string
	manifests     string
	podLogs       string
	maxPods       int64
	proxy         string
	proxySilent   time.Duration
	podPIDs       int64
	registerNode  bool
	taints        []string
	labels        map[string]string
	providerID    string

	runtimeOptions
	images     imageOptions
	masquerade bool
	bridge     string
	mtu        int

	// What of the machine is not for pods, and what pods have alone.
	cpuPolicy      string
	memoryPolicy   string
	topologyPolicy string
	topologyScope  string
	reservedCPUs   string
	reservedMemory string
	systemReserved map[string]string
	kubeReserved   map[string]string
	enforce        []string
	systemGroup    string
	kubeGroup      string

	evict struct {
		// As flags have them; empty leaves it to the file or to the defaults.
		hard, soft, softGrace, minReclaim string
		settings                          eviction.Settings
		transition                        time.Duration
		maxGrace                          int64
	}

	logMaxSize  string
	logMaxFiles int

	anonymous     bool
	webhookTokens bool
	authorization string
	readOnlyPort  int
	failSwapOn    bool
	swapBehavior  string
	cgroupDriver  string
	seccomp       bool
	sysctls       []string

	// From the configuration file alone.
	cfsQuota        bool
	failCgroupV1    bool
	statusEvery     time.Duration
	reportEvery     time.Duration
	leaseFor        time.Duration
	maxImages       int
	logCheckEvery   time.Duration
	maxRestartPause time.Duration
	runtimeTimeout  time.Duration
	streamIdle      time.Duration
	reserved        corev1.ResourceList

	parsed struct {
		nodeIPs    []netip.Addr
		taints     []corev1.Taint
		logMaxSize int64
		thresholds []eviction.Threshold
		shutdown   []shutdown.Period
		// reservedMemory is in bytes, by NUMA node.
		reservedCPUs   cpuset.CPUSet
		reservedMemory map[int]int64
	}
}

// New has upstream's defaults.
func New() *Options {
	const (
		defaultPort, defaultHealthPort, defaultPods, defaultImages, defaultLogFiles = 10250, 10248, 110, 50, 5
	)
	o := &Options{
		rootDir: "/var/lib/sampan/node", runDir: "/run/sampan/node", address: "0.0.0.0", port: defaultPort,
		clusterDomain: "cluster.local", resolvConf: "/etc/resolv.conf", maxPods: defaultPods, podPIDs: -1, registerNode: true,
		bridge: "cni0", proxy: "127.0.0.1:10256", cpuPolicy: noPolicy, memoryPolicy: "None", topologyPolicy: "none", topologyScope: "container", enforce: []string{enforcePods}, logMaxSize: "10Mi", logMaxFiles: defaultLogFiles, webhookTokens: true, authorization: "Webhook",
		cgroupDriver: "cgroupfs", cfsQuota: true, statusEvery: 10 * time.Second, reportEvery: 5 * time.Minute,
		leaseFor: 40 * time.Second, maxImages: defaultImages, logCheckEvery: 10 * time.Second, maxRestartPause: 5 * time.Minute,
		runtimeTimeout: 2 * time.Minute, streamIdle: 4 * time.Hour, reserved: corev1.ResourceList{},
	}
	o.images = defaultImageOptions()
	o.evict.settings.Hard, o.evict.transition = eviction.DefaultHard(), 5*time.Minute
	o.health.address, o.health.port = "127.0.0.1", defaultHealthPort
	return o
}

// AddFlags registers the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.flags = fs
	o.client.AddFlags(fs)
	fs.StringVar(&o.configFile, "config", o.configFile, "path of a KubeletConfiguration file; fields that are not supported are refused")
	fs.StringVar(&o.hostname, "hostname-override", o.hostname, "name of the node; empty uses the host's name")
	fs.StringVar(&o.nodeIP, "node-ip", o.nodeIP, "address of the node, or one of each family with a comma between; empty uses that of the default route")
	fs.StringVar(&o.rootDir, "root-dir", o.rootDir, "directory of images, containers, volumes and logs")
	fs.StringVar(&o.runDir, "run-dir", o.runDir, "directory of what ends with the machine: sockets, pins of namespaces")
	fs.StringVar(&o.address, "address", o.address, "IP address that the API listens on")
	fs.IntVar(&o.port, "port", o.port, "port of the API")
	fs.StringVar(&o.certFile, "tls-cert-file", o.certFile, "certificate of the API, PEM; empty makes a self-signed one in memory")
	fs.StringVar(&o.keyFile, "tls-private-key-file", o.keyFile, "private key of --tls-cert-file")
	fs.StringVar(&o.clientCA, "client-ca-file", o.clientCA, "certificates that sign those of the API's clients, PEM")
	fs.StringVar(&o.health.address, "healthz-bind-address", o.health.address, "IP address of the plain HTTP health check")
	fs.IntVar(&o.health.port, "healthz-port", o.health.port, "port of the plain HTTP health check; 0 serves none")
	o.addPodFlags(fs)
	o.addEvictionFlags(fs)
	o.addReservedFlags(fs)
	o.addIdentityFlags(fs)
	o.addRuntimeFlags(fs)
	o.addFixedFlags(fs)
}

func (o *Options) addPodFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.clusterDNS, "cluster-dns", o.clusterDNS, "addresses of the cluster's DNS")
	fs.StringVar(&o.clusterDomain, "cluster-domain", o.clusterDomain, "DNS domain of the cluster")
	fs.StringVar(&o.resolvConf, "resolv-conf", o.resolvConf, "resolver configuration that pods' ones are made from; empty is none")
	fs.StringVar(&o.manifests, "pod-manifest-path", o.manifests, "directory of static pods")
	fs.StringVar(&o.podLogs, "pod-logs-dir", o.podLogs, "directory of pods' logs; empty is logs below --root-dir")
	fs.Int64Var(&o.maxPods, "max-pods", o.maxPods, "how many pods can run here")
	fs.Int64Var(&o.podPIDs, "pod-max-pids", o.podPIDs, "how many processes a pod may have; -1 is no limit")
	fs.StringVar(&o.proxy, "proxy-address", o.proxy, "host:port of this node's proxy, which tells when a pod that ends gets no new connections; empty asks none")
	fs.DurationVar(&o.proxySilent, "pod-termination-delay", o.proxySilent, "how long the containers of a deleted pod run on where proxies do not tell of endpoints, at most 2s and half of the grace period; 0 is no delay")
	fs.BoolVar(&o.registerNode, "register-node", o.registerNode, "make the node's object if it is not there")
	fs.StringSliceVar(&o.taints, "register-with-taints", o.taints, "taints that the node is made with, key=value:effect")
	fs.StringToStringVar(&o.labels, "node-labels", o.labels, "labels of the node")
	fs.StringVar(&o.providerID, "provider-id", o.providerID, "what a cloud provider calls this machine")
	fs.StringVar(&o.logMaxSize, "container-log-max-size", o.logMaxSize, "size at which a container's log is rotated")
	fs.IntVar(&o.logMaxFiles, "container-log-max-files", o.logMaxFiles, "how many log files of a container are kept, at least 2")
	fs.BoolVar(&o.seccomp, "seccomp-default", o.seccomp, "use the runtime's seccomp profile for containers that name none")
	fs.StringSliceVar(&o.sysctls, "allowed-unsafe-sysctls", o.sysctls, "sysctls that pods may set besides the safe ones; a name may end in *")
}

func (o *Options) addEvictionFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.evict.hard, "eviction-hard", o.evict.hard, "how little may be left before pods are ended at once, signal<value with commas between; a value of 0% turns a signal off")
	fs.StringVar(&o.evict.soft, "eviction-soft", o.evict.soft, "how little may be left for --eviction-soft-grace-period, signal<value with commas between")
	fs.StringVar(&o.evict.softGrace, "eviction-soft-grace-period", o.evict.softGrace, "signal=duration with commas between")
	fs.StringVar(&o.evict.minReclaim, "eviction-minimum-reclaim", o.evict.minReclaim, "how much more than the threshold must be free again, signal=value with commas between")
	fs.DurationVar(&o.evict.transition, "eviction-pressure-transition-period", o.evict.transition, "how long the node's conditions stay after the pressure has gone")
	fs.Int64Var(&o.evict.maxGrace, "eviction-max-pod-grace-period", o.evict.maxGrace, "most seconds that pods get that are ended for a soft threshold")
}

// parseEviction joins what the flags and the file say.
func (o *Options) parseEviction() error {
	for _, f := range []struct {
		flag, text, separator string
		into                  *map[string]string
	}{
		{"eviction-hard", o.evict.hard, "<", &o.evict.settings.Hard}, {"eviction-soft", o.evict.soft, "<", &o.evict.settings.Soft},
		{"eviction-soft-grace-period", o.evict.softGrace, "=", &o.evict.settings.SoftGrace},
		{"eviction-minimum-reclaim", o.evict.minReclaim, "=", &o.evict.settings.MinReclaim},
	} {
		if !o.flags.Changed(f.flag) {
			continue
		}
		pairs, err := eviction.ParsePairs(f.text, f.separator)
		if err != nil {
			return fmt.Errorf("--%s: %w", f.flag, err)
		}
		*f.into = pairs
	}
	thresholds, err := o.evict.settings.Parse()
	if err != nil {
		return fmt.Errorf("eviction: %w", err)
	}
	o.parsed.thresholds = thresholds
	return nil
}

func (o *Options) addRuntimeFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.cgroupRoot, "cgroup-root", o.cgroupRoot, "control group that those of pods are below")
	fs.StringVar(&o.endpoint, "container-runtime-endpoint", o.endpoint, "unix socket of another CRI runtime; empty uses the one built in")
	o.runtimeOptions.addFlags(fs)
	o.images.addFlags(fs)
	fs.StringVar(&o.bridge, "pod-bridge", o.bridge, "name of the pods' bridge")
	fs.IntVar(&o.mtu, "pod-mtu", o.mtu, "MTU of pods' interfaces; 0 leaves it to the kernel")
	fs.BoolVar(&o.masquerade, "pod-masquerade", o.masquerade, "let pods reach other networks with the node's address")
}

// addFixedFlags are upstream's that have one value here.
func (o *Options) addFixedFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.anonymous, "anonymous-auth", o.anonymous, "must be false: the API is never open to anyone")
	fs.BoolVar(&o.webhookTokens, "authentication-token-webhook", o.webhookTokens, "must be true: tokens are reviewed by the API server")
	fs.StringVar(&o.authorization, "authorization-mode", o.authorization, "must be Webhook: access is reviewed by the API server")
	fs.IntVar(&o.readOnlyPort, "read-only-port", o.readOnlyPort, "must be 0")
	fs.BoolVar(&o.failSwapOn, "fail-swap-on", o.failSwapOn, "end at start when swap is on; containers get some only by memorySwap in the configuration file")
	fs.StringVar(&o.cgroupDriver, "cgroup-driver", o.cgroupDriver, "must be cgroupfs")
}

// Complete reads the configuration file, fills in what is derived, and refuses
// contradictions.
func (o *Options) Complete() error {
	if o.configFile != "" {
		config, err := kubeletconfig.Load(o.configFile)
		if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		if err := o.merge(config); err != nil {
			return fmt.Errorf("--config: %w", err)
		}
	}
	if o.client.Kubeconfig == "" {
		return errors.New("--kubeconfig is needed")
	}
	if o.hostname == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("finding the host's name: %w", err)
		}
		o.hostname = strings.ToLower(name)
	}
	if o.certDir == "" {
		o.certDir = identity.DefaultDir(o.rootDir)
	}
	if o.podLogs == "" {
		o.podLogs = filepath.Join(o.rootDir, "logs")
	}
	for flag, path := range map[string]string{"--root-dir": o.rootDir, "--run-dir": o.runDir, "--pod-logs-dir": o.podLogs} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s: %q is not absolute", flag, path)
		}
	}
	if err := o.checkFixed(); err != nil {
		return err
	}
	return o.parse()
}

func (o *Options) checkFixed() error {
	switch {
	case o.anonymous:
		return errors.New("--anonymous-auth: only false is supported")
	case !o.webhookTokens:
		return errors.New("--authentication-token-webhook: only true is supported")
	case o.authorization != "Webhook":
		return errors.New("--authorization-mode: only Webhook is supported")
	case o.readOnlyPort != 0:
		return errors.New("--read-only-port: only 0 is supported")
	case o.cgroupDriver != "cgroupfs":
		return errors.New("--cgroup-driver: only cgroupfs is supported")
	case (o.images.providerConfig == "") != (o.images.providerDir == ""):
		return errors.New("--image-credential-provider-config and --image-credential-provider-bin-dir go together")
	case (o.certFile == "") != (o.keyFile == ""):
		return errors.New("--tls-cert-file and --tls-private-key-file go together")
	case o.rotateServing && o.certFile != "":
		return errors.New("--rotate-server-certificates: the certificate of --tls-cert-file is not renewed")
	case o.proxySilent < 0:
		return errors.New("--pod-termination-delay: it is negative")
	case o.logMaxFiles < 2:
		return errors.New("--container-log-max-files: at least 2 are needed")
	}
	return nil
}

func (o *Options) parse() error {
	if err := o.images.policy.Validate(); err != nil {
		return err
	}
	for text := range strings.SplitSeq(o.nodeIP, ",") {
		if text == "" {
			continue
		}
		ip, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("--node-ip: %w", err)
		}
		o.parsed.nodeIPs = append(o.parsed.nodeIPs, ip)
	}
	for _, text := range o.taints {
		taint, err := parseTaint(text)
		if err != nil {
			return fmt.Errorf("--register-with-taints: %w", err)
		}
		o.parsed.taints = append(o.parsed.taints, taint)
	}
	size, err := resource.ParseQuantity(o.logMaxSize)
	if err != nil {
		return fmt.Errorf("--container-log-max-size: %w", err)
	}
	o.parsed.logMaxSize = size.Value()
	if err := o.parseReserved(); err != nil {
		return err
	}
	return o.parseEviction()
}

func parseTaint(text string) (corev1.Taint, error) {
	key, effect, found := strings.Cut(text, ":")
	key, value, _ := strings.Cut(key, "=")
	switch corev1.TaintEffect(effect) {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		if found && key != "" {
			return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}, nil
		}
	}
	return corev1.Taint{}, fmt.Errorf("%q is not key=value:effect", text)
}

// serving is how the API answers.
func (o *Options) serving() *component.SecureServing {
	return &component.SecureServing{BindAddress: o.address, Port: o.port, CertFile: o.certFile, KeyFile: o.keyFile}
}

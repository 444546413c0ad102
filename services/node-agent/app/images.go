package app

import (
	"context"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/node-agent/internal/imagegc"
	"github.com/sampan-io/sampan/services/node-agent/internal/podworker"
	"github.com/sampan-io/sampan/services/node-agent/internal/pulling"
	"github.com/sampan-io/sampan/services/node-agent/internal/tokens"
)

// imageOptions say how images come to the node and when they go.
type imageOptions struct {
	providerConfig, providerDir string
	policy                      imagegc.Policy
}

func defaultImageOptions() imageOptions {
	const high, low, minAge = 85, 80, 2 * time.Minute
	return imageOptions{policy: imagegc.Policy{High: high, Low: low, MinAge: minAge}}
}

func (o *imageOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.providerConfig, "image-credential-provider-config", "", "path of a CredentialProviderConfig file: programs that know registries' credentials")
	fs.StringVar(&o.providerDir, "image-credential-provider-bin-dir", "", "directory of the programs that --image-credential-provider-config names")
	fs.IntVar(&o.policy.High, "image-gc-high-threshold", o.policy.High, "percent of the images' disk in use above which unused images are removed; 100 is never")
	fs.IntVar(&o.policy.Low, "image-gc-low-threshold", o.policy.Low, "percent of the images' disk in use down to which unused images are removed")
	fs.DurationVar(&o.policy.MinAge, "minimum-image-ttl-duration", o.policy.MinAge, "age below which an unused image is not removed to make room")
}

// mergeImages takes what the file says wherever no flag was given.
func (o *Options) mergeImages(c *kubeletv1beta1.KubeletConfiguration) {
	unset := func(flag string) bool { return !o.flags.Changed(flag) }
	if c.ImageGCHighThresholdPercent != nil && unset("image-gc-high-threshold") {
		o.images.policy.High = int(*c.ImageGCHighThresholdPercent)
	}
	if c.ImageGCLowThresholdPercent != nil && unset("image-gc-low-threshold") {
		o.images.policy.Low = int(*c.ImageGCLowThresholdPercent)
	}
	take(&o.images.policy.MinAge, c.ImageMinimumGCAge.Duration, unset("minimum-image-ttl-duration"))
	take(&o.images.policy.MaxAge, c.ImageMaximumGCAge.Duration, true)
}

func (o *imageOptions) describe(c *kubeletv1beta1.KubeletConfiguration) {
	high, low := int32(o.policy.High), int32(o.policy.Low)
	c.ImageGCHighThresholdPercent, c.ImageGCLowThresholdPercent = &high, &low
	c.ImageMinimumGCAge, c.ImageMaximumGCAge = metav1.Duration{Duration: o.policy.MinAge}, metav1.Duration{Duration: o.policy.MaxAge}
}

func (a *agent) puller() (*pulling.Puller, error) {
	puller := &pulling.Puller{Service: runtimeAdapter{a.cri}, Secrets: a.objects, Event: a.events.Event}
	if a.runtime != nil {
		puller.Progress = func(image string) (done, total int64, ok bool) {
			progress, ok := a.runtime.Images().Progress(image)
			return progress.Done, progress.Total, ok
		}
	}
	if a.images.providerConfig == "" {
		return puller, nil
	}
	var err error
	puller.Plugins, err = pulling.LoadPlugins(a.images.providerConfig, a.images.providerDir, accounts{a.tokens, a.api})
	if err != nil {
		return nil, &component.UsageError{Err: err}
	}
	return puller, nil
}

// accounts implements pulling.Accounts.
type accounts struct {
	*tokens.Source
	client kubernetes.Interface
}

// Account implements pulling.Accounts.
func (a accounts) Account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return a.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

// collector is what removes images.
func (a *agent) collector() *imagegc.Collector {
	const every = 5 * time.Minute // upstream's
	return imagegc.New(imagegc.Config{
		Policy: a.images.policy, Runtime: imageUsers{runtimeAdapter{a.cri}, a}, Disk: a.imageDisk, Every: every, Log: a.log,
		Event: func(reason, message string) { a.events.Node(true, reason, message) },
	})
}

// imageDisk is where images are, as the runtime tells.
func (a *agent) imageDisk() (imagegc.Disk, error) {
	dir := filepath.Join(a.rootDir, "images")
	if a.runtime == nil {
		const patience = 10 * time.Second
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		response, err := a.cri.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		if err != nil {
			return imagegc.Disk{}, err
		}
		for _, fs := range response.GetImageFilesystems() {
			dir = fs.GetFsId().GetMountpoint()
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return imagegc.Disk{}, err
	}
	return imagegc.Disk{Capacity: fs.Blocks * uint64(fs.Bsize), Available: fs.Bavail * uint64(fs.Bsize)}, nil
}

// imageUsers implements imagegc.Runtime.
type imageUsers struct {
	runtimeAdapter
	a *agent
}

// ImagesInUse implements imagegc.Runtime.
func (u imageUsers) ImagesInUse(ctx context.Context) (map[string]bool, error) {
	response, err := u.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, c := range response.GetContainers() {
		used[c.GetImageRef()], used[c.GetImageId()], used[c.GetImage().GetImage()] = true, true, true
	}
	for _, state := range u.a.workers.States() {
		markVolumes(used, state)
	}
	return used, nil
}

// markVolumes adds the images that a pod mounts, also before its containers are made.
func markVolumes(used map[string]bool, state podworker.State) {
	if state.Pod == nil {
		return
	}
	for _, volume := range state.Pod.Spec.Volumes {
		if volume.Image != nil {
			used[pulling.FullName(volume.Image.Reference)] = true
		}
	}
	for _, c := range state.Runtime.Containers {
		for _, mount := range c.GetMounts() {
			used[mount.GetImage().GetImage()], used[mount.GetImage().GetImageRef()] = true, true
		}
	}
}

// RemoveImage implements imagegc.Runtime.
func (u imageUsers) RemoveImage(ctx context.Context, id string) error {
	_, err := u.client.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	return err
}

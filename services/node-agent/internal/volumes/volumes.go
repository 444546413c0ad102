// Package volumes makes the volumes of pods, keeps their content up to date, and
// takes them down.
//
// All of a pod lies below one directory, as the kubelet has it, so that what a
// killed agent has left is found again:
//
//	<root>/pods/<uid>/volumes/<kind>/<volume>       a volume
//	<root>/pods/<uid>/volume-subpaths/<volume>/<container>/<index>  a bind mount of a sub path
//	<root>/pods/<uid>/etc-hosts                      the pod's /etc/hosts
//	<root>/pods/<uid>/containers/<container>/<id>    a termination message
//
// Each pod is handled on its own: a volume that hangs holds up no other pod.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sampan-io/sampan/services/node-agent/internal/env"
)

// Tokens makes service account tokens.
type Tokens interface {
	// Token is one for the pod's service account that is bound to the pod, and the
	// time to ask for a new one.
	Token(ctx context.Context, pod *corev1.Pod, audience string, lifetime time.Duration) (token string, renew time.Time, err error)
}

// Config is what a Manager needs.
type Config struct {
	Root    string // the agent's root directory
	Objects env.Objects
	Tokens  Tokens
	Claims  Claims
	CSI     CSI
	// Bundles are the cluster's trust anchors; nil has none.
	Bundles TrustBundles
	// Allocatable is what the node can give, for resource references.
	Allocatable func() corev1.ResourceList
	// Failed is told why a volume could not be set up; it is tried again.
	Failed func(pod *corev1.Pod, volume string, err error)
	Log    *slog.Logger
}

// Manager makes and unmakes volumes.
type Manager struct {
	cfg   Config
	kinds []kind

	mu      sync.Mutex
	pods    map[types.UID]*podVolumes
	running sync.WaitGroup
	base    context.Context
	stop    context.CancelFunc
}

// New makes a manager; Close ends it.
func New(cfg Config) *Manager {
	base, stop := context.WithCancel(context.Background())
	return &Manager{cfg: cfg, kinds: kinds(), pods: map[types.UID]*podVolumes{}, base: base, stop: stop}
}

// Close ends the upkeep of volumes; they stay as they are.
func (m *Manager) Close() {
	m.stop()
	m.running.Wait()
}

// kind is one kind of volume.
type kind interface {
	name() string // of its directory, "kubernetes.io~configmap"
	owns(volume *corev1.Volume) bool
	// setUp makes the volume or brings it up to date.
	setUp(ctx context.Context, r *request) (result, error)
}

type request struct {
	*Manager
	pod    *corev1.Pod
	volume *corev1.Volume
	dir    string // where the volume's content goes
	podIPs []string
	claim  *corev1.PersistentVolumeClaim // of a persistent volume
}

type result struct {
	path     string    // on the host
	image    string    // instead of path: what the runtime makes the volume from
	readOnly bool      // must be mounted so
	renew    time.Time // when to set it up again; zero is never
	live     bool      // its content changes with what it is made from
}

// Mounted is a volume that can be given to containers.
type Mounted struct {
	HostPath string
	ReadOnly bool // containers get it read-only, whatever they ask for
	// Image is set instead of HostPath for a volume that the runtime makes from an image.
	Image string
}

// podVolumes are the volumes of one pod.
type podVolumes struct {
	kick chan struct{} // something that a volume is made from has changed

	mu      sync.Mutex
	pod     *corev1.Pod
	podIPs  []string
	mounted map[string]result
	upkeep  bool
	end     context.CancelFunc
	ended   chan struct{}
}

// PodDir is the directory of a pod.
func (m *Manager) PodDir(uid types.UID) string {
	return filepath.Join(m.cfg.Root, "pods", string(uid))
}

// Path is where a volume of a pod is on the host, "" while it is not mounted.
func (m *Manager) Path(uid types.UID, volume string) string {
	m.mu.Lock()
	p, known := m.pods[uid]
	m.mu.Unlock()
	if !known {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mounted[volume].path
}

// EmptyDir is where a pod's emptyDir volume lies.
func (m *Manager) EmptyDir(uid types.UID, volume string) string {
	return m.dir(uid, emptyDirKind{}.name(), volume)
}

func (m *Manager) dir(uid types.UID, kind, volume string) string {
	return filepath.Join(m.PodDir(uid), "volumes", kind, volume)
}

func (m *Manager) forPod(pod *corev1.Pod) *podVolumes {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, known := m.pods[pod.UID]
	if !known {
		p = &podVolumes{kick: make(chan struct{}, 1), mounted: map[string]result{}}
		m.pods[pod.UID] = p
	}
	p.mu.Lock()
	p.pod = pod
	p.mu.Unlock()
	return p
}

// Mount sets up all volumes of the pod and returns when it has, or with the last
// errors when ctx ends. What fails is tried again, at once when an object that
// the pod uses has changed.
func (m *Manager) Mount(ctx context.Context, pod *corev1.Pod) (map[string]Mounted, error) {
	p := m.forPod(pod)
	const firstPause, maxPause = 500 * time.Millisecond, 2 * time.Minute
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := m.setUpAll(ctx, p, false)
		if err == nil {
			break
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-p.kick:
			pause = firstPause / 2
		case <-ctx.Done():
			timer.Stop()
			return nil, errors.Join(ctx.Err(), err)
		}
		timer.Stop()
	}
	m.startUpkeep(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	mounts := make(map[string]Mounted, len(p.mounted))
	for name, r := range p.mounted {
		mounts[name] = Mounted{HostPath: r.path, Image: r.image, ReadOnly: r.readOnly}
	}
	return mounts, nil
}

// setUpAll sets up the volumes that are not yet, or, again, all that are live.
func (m *Manager) setUpAll(ctx context.Context, p *podVolumes, again bool) error {
	p.mu.Lock()
	pod, podIPs := p.pod, p.podIPs
	p.mu.Unlock()
	errs := make([]error, len(pod.Spec.Volumes))
	var group sync.WaitGroup
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		p.mu.Lock()
		old, done := p.mounted[volume.Name]
		p.mu.Unlock()
		if done != again || (again && !old.live) {
			continue
		}
		group.Go(func() {
			r, err := m.setUp(ctx, &request{Manager: m, pod: pod, volume: volume, podIPs: podIPs})
			if err != nil {
				errs[i] = fmt.Errorf("volume %q: %w", volume.Name, err)
				if ctx.Err() == nil {
					m.cfg.Failed(pod, volume.Name, err)
				}
				return
			}
			p.mu.Lock()
			p.mounted[volume.Name] = r
			p.mu.Unlock()
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (m *Manager) setUp(ctx context.Context, r *request) (result, error) {
	for _, k := range m.kinds {
		if !k.owns(r.volume) {
			continue
		}
		r.dir = m.dir(r.pod.UID, k.name(), r.volume.Name)
		return k.setUp(ctx, r)
	}
	return result{}, fmt.Errorf("volumes of kind %s are not supported by this node", SourceName(&r.volume.VolumeSource))
}

// SourceName is the name of the volume's kind as it is written in the API.
func SourceName(source *corev1.VolumeSource) string {
	value := reflect.ValueOf(source).Elem()
	for i := range value.NumField() {
		if !value.Field(i).IsNil() {
			name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return "unknown"
}

// Changed tells that an object that the pod uses has changed.
func (m *Manager) Changed(uid types.UID) {
	m.mu.Lock()
	p, known := m.pods[uid]
	m.mu.Unlock()
	if known {
		p.wake()
	}
}

// PodChanged tells of the pod's new metadata and addresses.
func (m *Manager) PodChanged(pod *corev1.Pod, podIPs []string) {
	m.mu.Lock()
	p, known := m.pods[pod.UID]
	m.mu.Unlock()
	if !known {
		return
	}
	p.mu.Lock()
	changed := !reflect.DeepEqual(p.pod.Labels, pod.Labels) || !reflect.DeepEqual(p.pod.Annotations, pod.Annotations)
	p.pod, p.podIPs = pod, podIPs
	p.mu.Unlock()
	if changed {
		p.wake()
	}
}

func (p *podVolumes) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// startUpkeep keeps live volumes up to date until the pod is unmounted.
func (m *Manager) startUpkeep(p *podVolumes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := false
	for _, r := range p.mounted {
		live = live || r.live
	}
	if p.upkeep || !live {
		return
	}
	ctx, end := context.WithCancel(m.base)
	p.upkeep, p.end, p.ended = true, end, make(chan struct{})
	m.running.Go(func() {
		defer close(p.ended)
		m.keepUp(ctx, p)
	})
}

func (m *Manager) keepUp(ctx context.Context, p *podVolumes) {
	const firstPause, maxPause = time.Second, time.Minute
	pause := firstPause
	for {
		timer := time.NewTimer(p.untilRenewal(time.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.kick:
		case <-timer.C:
		}
		timer.Stop()
		if err := m.setUpAll(ctx, p, true); err == nil || ctx.Err() != nil {
			pause = firstPause
			continue
		}
		time.AfterFunc(pause, p.wake)
		pause = min(2*pause, maxPause)
	}
}

func (p *podVolumes) untilRenewal(now time.Time) time.Duration {
	const never = 24 * time.Hour
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := never
	for _, r := range p.mounted {
		if !r.renew.IsZero() {
			wait = min(wait, max(r.renew.Sub(now), time.Second))
		}
	}
	return wait
}

// Unmount takes down everything of the pod, by what lies on the disk. It may be
// called again, and for pods of an earlier run.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	m.mu.Lock()
	p, known := m.pods[uid]
	delete(m.pods, uid)
	m.mu.Unlock()
	if known {
		p.mu.Lock()
		end, ended := p.end, p.ended
		p.mu.Unlock()
		if end != nil {
			end()
			select {
			case <-ended:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	dir := m.PodDir(uid)
	if err := removeTree(filepath.Join(dir, "volume-subpaths")); err != nil {
		return err
	}
	if m.cfg.CSI != nil { // a driver unmounts what it has mounted
		if err := m.cfg.CSI.Unmount(ctx, uid); err != nil {
			return err
		}
	}
	return removeTree(filepath.Join(dir, "volumes"))
}

// Remove takes down everything of the pod and its directory.
func (m *Manager) Remove(ctx context.Context, uid types.UID) error {
	if err := m.Unmount(ctx, uid); err != nil {
		return err
	}
	if err := os.RemoveAll(m.PodDir(uid)); err != nil {
		return fmt.Errorf("removing the directory of pod %s: %w", uid, err)
	}
	return nil
}

// Pods are those that have a directory.
func (m *Manager) Pods() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(m.cfg.Root, "pods"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing pod directories: %w", err)
	}
	var uids []types.UID
	for _, entry := range entries {
		uids = append(uids, types.UID(entry.Name()))
	}
	return uids, nil
}

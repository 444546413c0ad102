package podworker

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/criconfig"
	"github.com/sampan-io/sampan/services/node-agent/internal/probes"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// role is what a container is in its pod.
type role int

const (
	app role = iota
	initial
	sidecar
	ephemeral
)

// start is a container to be started.
type start struct {
	spec     *corev1.Container
	role     role
	restarts int32
	target   string // name of the container that an ephemeral one looks into, or ""
}

// kill is a container to be stopped while its pod goes on.
type kill struct {
	container cri.Container
	spec      *corev1.Container
	message   string // of the event
	atOnce    bool   // without a pre-stop hook and a grace period
}

// hold is why and how long a container waits for its next start.
type hold struct {
	until time.Time
	why   status.Waiting
}

// plan is what has to be done for a pod now.
type plan struct {
	newSandbox bool
	sandboxID  string // the one to start in, unless it must be made
	attempt    uint32 // of the one to make
	starts     []start
	kills      []kill
	discard    []cri.Container // made but never started, by a run that was killed
	holds      map[string]hold
	finished   bool // nothing is to run any more
	failedInit bool
	// again tells that a container's rules want all of the pod's to begin anew: those
	// to discard are removed once none runs (KEP-5532).
	again bool
}

// next is when something must be looked at again; zero is never.
func (p *plan) next() time.Time {
	var next time.Time
	for _, h := range p.holds {
		if next.IsZero() || h.until.Before(next) {
			next = h.until
		}
	}
	return next
}

// planInput is all that a plan is made from.
type planInput struct {
	pod     *corev1.Pod
	runtime *cri.Pod
	now     time.Time
	verdict func(containerID string, kind probes.Kind) probes.Verdict
	// pause is how long a container that has ended must wait for its restart.
	pause func(c cri.Container) time.Duration
	// resized tells that a container has been stopped to get other resources; nil is
	// none.
	resized func(name string) bool
	// killing tells that a container is being stopped already.
	killing func(containerID string) bool
}

// makePlan decides; it is pure.
func makePlan(in planInput) *plan {
	p := &planner{planInput: in, plan: &plan{holds: map[string]hold{}}}
	sandbox := in.runtime.Sandbox()
	if p.sandboxUsable(sandbox) {
		p.plan.sandboxID = sandbox.GetId()
		p.inSandbox()
		return p.plan
	}
	if sandbox != nil {
		p.plan.attempt = sandbox.GetMetadata().GetAttempt() + 1
	}
	p.anew()
	return p.plan
}

type planner struct {
	planInput
	plan *plan
}

func (p *planner) sandboxUsable(sandbox *runtimeapi.PodSandboxStatus) bool {
	if sandbox == nil || sandbox.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
		return false
	}
	return p.pod.Spec.HostNetwork || sandbox.GetNetwork().GetIp() != ""
}

// anew plans for a pod without a usable sandbox: everything that is not over for
// good begins again.
func (p *planner) anew() {
	ran := len(p.runtime.Containers) > 0
	if ran && p.pod.Spec.RestartPolicy == corev1.RestartPolicyNever && !p.anyRestartsItself() {
		p.plan.finished = true
		return
	}
	var wanted []start
	for i := range p.pod.Spec.Containers {
		spec := &p.pod.Spec.Containers[i]
		last, known := p.runtime.Latest(spec.Name)
		if known && last.Exited() && !shouldRestart(p.pod, spec, last.GetExitCode()) {
			continue
		}
		wanted = append(wanted, p.start(spec, app))
	}
	if len(wanted) == 0 {
		p.plan.finished = true
		return
	}
	p.plan.newSandbox = true
	if len(p.pod.Spec.InitContainers) > 0 {
		spec := &p.pod.Spec.InitContainers[0]
		wanted = []start{p.start(spec, initRole(spec))}
	}
	p.plan.starts = wanted
}

func (p *planner) anyRestartsItself() bool {
	return slices.ContainsFunc(p.pod.Spec.Containers, func(c corev1.Container) bool { return c.RestartPolicy != nil })
}

func initRole(spec *corev1.Container) role {
	if criconfig.Restartable(spec) {
		return sidecar
	}
	return initial
}

func (p *planner) start(spec *corev1.Container, r role) start {
	return start{spec: spec, role: r, restarts: p.nextRestart(spec.Name)}
}

// nextRestart counts the containers of that name so far, also those that the
// runtime has forgotten.
func (p *planner) nextRestart(name string) int32 {
	if last, known := p.runtime.Latest(name); known {
		return last.RestartCount() + 1
	}
	for _, list := range [][]corev1.ContainerStatus{p.pod.Status.InitContainerStatuses, p.pod.Status.ContainerStatuses, p.pod.Status.EphemeralContainerStatuses} {
		for _, old := range list {
			if old.Name == name && old.ContainerID != "" {
				return old.RestartCount + 1
			}
		}
	}
	return 0
}

// inSandbox plans for a pod whose sandbox is well.
func (p *planner) inSandbox() {
	if p.restartAll() {
		return
	}
	for i := range p.pod.Spec.EphemeralContainers {
		p.ephemeral(&p.pod.Spec.EphemeralContainers[i])
	}
	if !p.initContainers() {
		return
	}
	alive := 0
	for i := range p.pod.Spec.Containers {
		if p.container(&p.pod.Spec.Containers[i], app) {
			alive++
		}
	}
	p.plan.finished = alive == 0
}

func (p *planner) ephemeral(c *corev1.EphemeralContainer) {
	spec := corev1.Container(c.EphemeralContainerCommon)
	if _, ran := p.runtime.Latest(spec.Name); ran {
		return
	}
	p.plan.starts = append(p.plan.starts, start{spec: &spec, role: ephemeral, target: c.TargetContainerName})
}

// begun tells that the pod's own containers have run in this sandbox.
func (p *planner) begun() bool {
	for i := range p.pod.Spec.Containers {
		if _, ran := p.runtime.In(p.plan.sandboxID, p.pod.Spec.Containers[i].Name); ran {
			return true
		}
	}
	return false
}

// initContainers plans for them and tells whether the pod's own may run.
func (p *planner) initContainers() bool {
	begun := p.begun()
	for i := range p.pod.Spec.InitContainers {
		spec := &p.pod.Spec.InitContainers[i]
		done := false
		if criconfig.Restartable(spec) {
			done = p.sidecar(spec)
		} else {
			done = p.initContainer(spec, begun)
		}
		if !done && !begun {
			return false
		}
	}
	return true
}

// initContainer tells whether it has done its work.
func (p *planner) initContainer(spec *corev1.Container, begun bool) bool {
	if begun {
		return true
	}
	last, ran := p.runtime.In(p.plan.sandboxID, spec.Name)
	if ran && last.Exited() {
		if last.GetExitCode() == 0 {
			return true
		}
		if !shouldRestart(p.pod, spec, last.GetExitCode()) {
			p.plan.finished, p.plan.failedInit = true, true
			return false
		}
	}
	p.container(spec, initial)
	return false
}

// sidecar tells whether those after it may start.
func (p *planner) sidecar(spec *corev1.Container) bool {
	p.container(spec, sidecar)
	now, runs := p.runtime.In(p.plan.sandboxID, spec.Name)
	return runs && now.Running() && p.verdict(now.GetId(), probes.Startup) == probes.Success
}

// container plans for one and tells whether it runs or will.
func (p *planner) container(spec *corev1.Container, r role) bool {
	now, ran := p.runtime.In(p.plan.sandboxID, spec.Name)
	switch {
	case !ran:
		p.plan.starts = append(p.plan.starts, p.start(spec, r))
	case now.Running():
		p.watch(spec, now)
	case now.Exited():
		if p.resized != nil && p.resized(spec.Name) {
			p.plan.starts = append(p.plan.starts, p.start(spec, r))
			return true
		}
		if r != sidecar && !shouldRestart(p.pod, spec, now.GetExitCode()) {
			return false
		}
		p.restart(spec, r, now)
	default:
		p.plan.discard = append(p.plan.discard, now)
		again := p.start(spec, r)
		again.restarts = now.RestartCount()
		p.plan.starts = append(p.plan.starts, again)
	}
	return true
}

// restart starts a container that has ended, once its pause is over.
func (p *planner) restart(spec *corev1.Container, r role, last cri.Container) {
	pause := p.pause(last)
	due := time.Unix(0, last.GetFinishedAt()).Add(pause)
	if p.now.Before(due) {
		message := fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)", pause, spec.Name, p.pod.Name, p.pod.Namespace, p.pod.UID)
		p.plan.holds[spec.Name] = hold{until: due, why: status.Waiting{Reason: status.ReasonCrashLoopBackOff, Message: message}}
		return
	}
	p.plan.starts = append(p.plan.starts, p.start(spec, r))
}

// watch stops a running container that its probes or a change condemn.
func (p *planner) watch(spec *corev1.Container, now cri.Container) {
	if p.killing(now.GetId()) {
		return
	}
	message := ""
	switch {
	case now.GetAnnotations()[cri.AnnotationHash] != "" && now.GetAnnotations()[cri.AnnotationHash] != criconfig.Hash(spec):
		message = fmt.Sprintf("Container %s definition changed, will be restarted", spec.Name)
	case p.verdict(now.GetId(), probes.Startup) == probes.Failure:
		message = fmt.Sprintf("Container %s failed startup probe", spec.Name) + p.fate(spec)
	case p.verdict(now.GetId(), probes.Liveness) == probes.Failure:
		message = fmt.Sprintf("Container %s failed liveness probe", spec.Name) + p.fate(spec)
	default:
		return
	}
	p.plan.kills = append(p.plan.kills, kill{container: now, spec: spec, message: message})
}

func (p *planner) fate(spec *corev1.Container) string {
	const killed = 137
	if criconfig.Restartable(spec) || shouldRestart(p.pod, spec, killed) {
		return ", will be restarted"
	}
	return ""
}

// restartAll plans for all containers to begin anew, if the rules of one that has
// ended say so.
func (p *planner) restartAll() bool {
	var cause *cri.Container
	for _, list := range [][]corev1.Container{p.pod.Spec.InitContainers, p.pod.Spec.Containers} {
		for i := range list {
			if last, ran := p.runtime.In(p.plan.sandboxID, list[i].Name); ran && last.Exited() && matchesRule(&list[i], last.GetExitCode(), corev1.ContainerRestartRuleActionRestartAllContainers) {
				cause = &last
			}
		}
	}
	if cause == nil {
		return false
	}
	p.plan.again = true
	running := false
	for _, c := range p.runtime.Containers {
		if c.SandboxID != p.plan.sandboxID || !c.Running() {
			continue
		}
		running = true
		if spec := findSpec(p.pod, c.Name()); spec != nil && !p.killing(c.GetId()) {
			p.plan.kills = append(p.plan.kills, kill{container: c, spec: spec, message: fmt.Sprintf("Stopping container %s, for all containers of the pod restart", c.Name()), atOnce: true})
		}
	}
	if running {
		return true
	}
	if due := time.Unix(0, cause.GetFinishedAt()).Add(p.pause(*cause)); p.now.Before(due) {
		p.plan.holds[cause.Name()] = hold{until: due, why: status.Waiting{Reason: status.ReasonCrashLoopBackOff, Message: "back-off restarting all containers of the pod"}}
		return true
	}
	for _, c := range p.runtime.Containers {
		if c.SandboxID == p.plan.sandboxID {
			p.plan.discard = append(p.plan.discard, c)
		}
	}
	return true
}

// matchesRule tells whether one of the container's rules has that action for the
// exit code.
func matchesRule(spec *corev1.Container, exitCode int32, action corev1.ContainerRestartRuleAction) bool {
	for _, rule := range spec.RestartPolicyRules {
		if rule.ExitCodes == nil || rule.Action != action {
			continue
		}
		in := slices.Contains(rule.ExitCodes.Values, exitCode)
		if in == (rule.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return true
		}
	}
	return false
}

// shouldRestart tells whether a container that ended with that code runs again:
// by its own rules, its own policy, or its pod's.
func shouldRestart(pod *corev1.Pod, spec *corev1.Container, exitCode int32) bool {
	if matchesRule(spec, exitCode, corev1.ContainerRestartRuleActionRestart) {
		return true
	}
	policy := pod.Spec.RestartPolicy
	if spec.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*spec.RestartPolicy)
	}
	if slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == spec.Name }) && exitCode == 0 && !criconfig.Restartable(spec) {
		return false
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return exitCode != 0
	}
	return true
}

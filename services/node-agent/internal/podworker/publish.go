package podworker

import (
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sampan-io/sampan/services/node-agent/internal/cri"
	"github.com/sampan-io/sampan/services/node-agent/internal/logs"
	"github.com/sampan-io/sampan/services/node-agent/internal/probes"
	"github.com/sampan-io/sampan/services/node-agent/internal/status"
)

// publish hands the pod's status to the publisher. It returns when it should be
// called again though nothing has happened; zero is never.
func (w *worker) publish(pod *corev1.Pod, holds map[string]hold) time.Time {
	if len(pod.Spec.Containers) == 0 {
		return time.Time{} // an orphan; there is nobody to tell
	}
	if quiet := w.quietUntil(); time.Now().Before(quiet) && pod.Status.StartTime != nil {
		return quiet
	}
	waiting := make(map[string]status.Waiting, len(holds))
	for name, h := range holds {
		waiting[name] = h.why
	}
	w.cfg.Status.Publish(pod, status.Compute(status.Input{
		Pod: pod, Runtime: w.runtime, Waiting: waiting, RuntimeName: w.cfg.RuntimeName, HostIPs: w.cfg.Node.HostIPs,
		Started:   func(id string) bool { return w.cfg.Probes.Verdict(id, probes.Startup) == probes.Success },
		Ready:     func(id string) bool { return w.cfg.Probes.Verdict(id, probes.Readiness) == probes.Success },
		Starting:  w.isStarting,
		Message:   func(c cri.Container) string { return w.message(pod, c) },
		Resources: w.resources, Resize: w.resizeConditions(pod),
		End: w.end, Finished: w.finished, Now: time.Now(),
	}))
	return time.Time{}
}

// Limits of termination messages, upstream's.
const (
	maxMessage        = 4096
	maxMessagesOfPod  = 12 << 10
	maxMessageFromLog = 2048
	messageLogLines   = 80
)

// message reads what a container has left when it ended, once.
func (w *worker) message(pod *corev1.Pod, c cri.Container) string {
	if text, known := w.messages[c.GetId()]; known {
		return text
	}
	text := readMessage(c.GetAnnotations()[cri.AnnotationMessageHostPath])
	fallBack := c.GetAnnotations()[cri.AnnotationMessagePolicy] == string(corev1.TerminationMessageFallbackToLogsOnError)
	if text == "" && fallBack && c.GetExitCode() != 0 {
		text = logs.Last(w.cfg.Node.LogsDir, c.GetLogPath(), messageLogLines, maxMessageFromLog)
	}
	if text == "" && c.GetMessage() != "" {
		text = c.GetMessage()
	}
	count := max(1, len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
	limit := min(maxMessage, maxMessagesOfPod/count)
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "")
	}
	text = strings.ToValidUTF8(text, "")
	w.messages[c.GetId()] = text
	return text
}

// readMessage reads the file that the container could write. The container may
// have made anything of it but a link, for it is a mount point there.
func readMessage(path string) string {
	if path == "" {
		return ""
	}
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxMessage))
	if err != nil {
		return ""
	}
	return string(data)
}

// graceOf is how long the pod's containers may take to end, in seconds.
func (w *worker) graceOf(pod *corev1.Pod, gone bool) int64 {
	const usual = 30
	grace := int64(usual)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = *pod.Spec.TerminationGracePeriodSeconds
	} else if gone {
		for _, c := range w.runtime.Containers {
			if n, err := strconv.ParseInt(c.GetAnnotations()[cri.AnnotationPodGrace], 10, 64); err == nil {
				grace = n
			}
		}
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		grace = *pod.DeletionGracePeriodSeconds
	}
	if w.end != nil && w.end.Grace > 0 {
		grace = min(grace, w.end.Grace)
	}
	return max(grace, 1)
}

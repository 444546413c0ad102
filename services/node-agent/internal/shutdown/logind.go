package shutdown

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

// Logind is systemd-logind on the system bus.
type Logind struct {
	// ConfDir is where the longest delay of inhibitors is set; "" uses logind's.
	ConfDir string
}

const (
	logindService  = "org.freedesktop.login1"
	logindPath     = "/org/freedesktop/login1"
	logindManager  = "org.freedesktop.login1.Manager"
	logindConfDir  = "/etc/systemd/logind.conf.d"
	logindConfFile = "99-kubelet.conf"
)

func connect(ctx context.Context) (*dbus.Conn, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("connecting to the system bus: %w", err)
	}
	return conn, nil
}

// Hold implements Announcer. It raises logind's longest delay where that is
// shorter.
func (l Logind) Hold(ctx context.Context, most time.Duration) (release func(), err error) {
	conn, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	manager := conn.Object(logindService, logindPath)
	if err := l.allow(ctx, conn, manager, most); err != nil {
		return nil, err
	}
	var fd dbus.UnixFD
	call := manager.CallWithContext(ctx, logindManager+".Inhibit", 0, "shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")
	if err := call.Store(&fd); err != nil {
		return nil, fmt.Errorf("asking logind to delay shutdowns: %w", err)
	}
	return func() { _ = syscall.Close(int(fd)) }, nil
}

// allow lets logind wait for as long.
func (l Logind) allow(ctx context.Context, conn *dbus.Conn, manager dbus.BusObject, most time.Duration) error {
	if now, err := longestDelay(manager); err != nil || now >= most {
		return err
	}
	dir := l.ConfDir
	if dir == "" {
		dir = logindConfDir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("configuring logind: %w", err)
	}
	text := fmt.Sprintf("# Written by the node agent, for shutdownGracePeriod.\n[Login]\nInhibitDelayMaxSec=%.0f\n", most.Seconds())
	if err := os.WriteFile(filepath.Join(dir, logindConfFile), []byte(text), 0o644); err != nil {
		return fmt.Errorf("configuring logind: %w", err)
	}
	systemd := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	if call := systemd.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0, "systemd-logind.service", "all", int32(syscall.SIGHUP)); call.Err != nil {
		return fmt.Errorf("letting logind read its configuration: %w", call.Err)
	}
	const patience, look = 5 * time.Second, 50 * time.Millisecond
	for deadline := time.Now().Add(patience); ; time.Sleep(look) {
		now, err := longestDelay(manager)
		if err == nil && now >= most {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("logind delays shutdowns for %s at most, and not for shutdownGracePeriod, %s", now, most)
		}
	}
}

func longestDelay(manager dbus.BusObject) (time.Duration, error) {
	value, err := manager.GetProperty(logindManager + ".InhibitDelayMaxUSec")
	if err != nil {
		return 0, fmt.Errorf("asking logind for its longest delay: %w", err)
	}
	microseconds, ok := value.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("logind's longest delay is %s, not a number", value)
	}
	return time.Duration(microseconds) * time.Microsecond, nil
}

// Announcements implements Announcer.
func (l Logind) Announcements(ctx context.Context) (<-chan bool, error) {
	conn, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(logindManager), dbus.WithMatchObjectPath(logindPath), dbus.WithMatchMember("PrepareForShutdown")); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("listening to logind: %w", err)
	}
	const waiting = 4
	signals, out := make(chan *dbus.Signal, waiting), make(chan bool)
	conn.Signal(signals)
	go func() {
		defer close(out)
		defer func() { _ = conn.Close() }()
		for {
			select {
			case <-ctx.Done():
				return
			case signal, open := <-signals:
				if !open {
					return
				}
				going, ok := first(signal.Body).(bool)
				if !ok {
					continue
				}
				select {
				case out <- going:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out, nil
}

func first(body []any) any {
	if len(body) == 0 {
		return nil
	}
	return body[0]
}

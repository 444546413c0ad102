// Command probe is a container's health check: it ends with 0 once a service
// answers, with 1 when it does not within the timeout.
//
//	probe [-timeout DURATION] [-watch DURATION] URL…
//
// A URL is http://…, https://… (the certificate is not checked: it is the
// service's own, on loopback) or nats://host:port, which greets and is left. With -watch a check of a
// container that has been up for a while goes on looking for that long and fails
// at the first miss, so that frequent checks do not mean frequent processes.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	pause = 50 * time.Millisecond // between tries while a service starts
	every = time.Second           // between looks of -watch
	young = 30 * time.Second      // age up to which a container is still starting
)

func main() {
	timeout := flag.Duration("timeout", 2*time.Second, "how long a service may take to answer")
	watch := flag.Duration("watch", 0, "how long to go on looking once the container has been up for a while")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: probe [-timeout DURATION] [-watch DURATION] URL…")
		os.Exit(2)
	}
	if err := run(*timeout, *watch, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(timeout, watch time.Duration, targets []string) error {
	end := time.Now().Add(watch)
	for {
		for _, target := range targets {
			if err := await(timeout, target); err != nil {
				return err
			}
		}
		if watch == 0 || !settled() || time.Now().After(end) {
			return nil
		}
		time.Sleep(every)
	}
}

// await tries until the target answers or the time is over.
func await(timeout time.Duration, target string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for {
		err := try(ctx, target)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", target, err)
		case <-time.After(pause):
		}
	}
}

func try(ctx context.Context, target string) error {
	address, err := url.Parse(target)
	if err != nil {
		return err
	}
	if address.Scheme == "nats" {
		return greet(ctx, address.Host)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: unchecked(), DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	if err := answer.Body.Close(); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

func unchecked() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// greet awaits what a NATS server says first, and the TLS that it wants then:
// whoever leaves before that is in its log.
func greet(ctx context.Context, host string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if end, bounded := ctx.Deadline(); bounded {
		if err := conn.SetDeadline(end); err != nil {
			return err
		}
	}
	info := make([]byte, 0, 4096)
	for one := make([]byte, 1); !strings.HasSuffix(string(info), "\n"); info = append(info, one[0]) {
		if _, err := conn.Read(one); err != nil || len(info) == cap(info) {
			return errors.Join(errors.New("no greeting"), err)
		}
	}
	if !strings.HasPrefix(string(info), "INFO ") {
		return fmt.Errorf("greets with %.20q", info)
	}
	if !strings.Contains(string(info), `"tls_required":true`) {
		return nil
	}
	return tls.Client(conn, unchecked()).HandshakeContext(ctx)
}

// settled says whether the container's first process has been running for a
// while. Where that cannot be told it has not.
func settled() bool {
	stat, err := os.ReadFile("/proc/1/stat")
	if err != nil {
		return false
	}
	// The name, in parentheses, may hold spaces; the start is the 20th field after it.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	uptime, err := os.ReadFile("/proc/uptime")
	if err != nil || len(fields) < 20 {
		return false
	}
	ticks, err := strconv.ParseFloat(fields[19], 64)
	if err != nil {
		return false
	}
	up, err := strconv.ParseFloat(strings.Fields(string(uptime))[0], 64)
	if err != nil {
		return false
	}
	const ticksPerSecond = 100 // USER_HZ, the same on every architecture that Go's ports know
	return time.Duration((up-ticks/ticksPerSecond)*float64(time.Second)) > young
}

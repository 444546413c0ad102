package main

import (
	"fmt"
	"slices"
	"syscall"
	"time"
)

// percentile is the p-th percentile of sorted durations.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*p))]
}

// report prints one line: what, how many per second, latencies, and the share
// of one core that this client itself took.
func report(what string, count int, took time.Duration, cpu time.Duration, latencies []time.Duration) {
	slices.Sort(latencies)
	fmt.Printf("%-44s %9.0f/s   p50 %8s   p99 %8s   client CPU %3.0f %%\n", what, float64(count)/took.Seconds(),
		percentile(latencies, 0.50).Round(10*time.Microsecond), percentile(latencies, 0.99).Round(10*time.Microsecond), 100*cpu.Seconds()/took.Seconds())
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

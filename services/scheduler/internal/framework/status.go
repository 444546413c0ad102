// Package framework is the contract between the scheduler and its plugins, with
// upstream's extension points.
package framework

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Code is how a plugin answered.
type Code int

// The answers of plugins.
const (
	// Success lets scheduling go on.
	Success Code = iota
	// Error is a fault of the plugin, not a verdict on the pod.
	Error
	// Unschedulable refuses for now; evicting other pods may help.
	Unschedulable
	// UnschedulableAndUnresolvable refuses where evicting other pods cannot help.
	UnschedulableAndUnresolvable
	// Wait holds a pod in Permit until it is allowed or refused.
	Wait
	// Skip leaves the plugin out of the rest of this cycle.
	Skip
	// Pending refuses until something outside of the scheduler is done.
	Pending
)

func (c Code) String() string {
	return [...]string{"Success", "Error", "Unschedulable", "UnschedulableAndUnresolvable", "Wait", "Skip", "Pending"}[c]
}

// Status is the answer of a plugin. A nil Status is Success.
type Status struct {
	Code    Code
	Reasons []string
	Plugin  string // that answered; set by the framework
	Err     error  // with Code Error
}

// NewStatus makes an answer with reasons for it.
func NewStatus(code Code, reasons ...string) *Status { return &Status{Code: code, Reasons: reasons} }

// AsStatus makes an Error of err; nil stays nil.
func AsStatus(err error) *Status {
	if err == nil {
		return nil
	}
	return &Status{Code: Error, Reasons: []string{err.Error()}, Err: err}
}

// CodeOf is the code of s, which may be nil.
func (s *Status) CodeOf() Code {
	if s == nil {
		return Success
	}
	return s.Code
}

// OK says whether s is Success.
func (s *Status) OK() bool { return s.CodeOf() == Success }

// Rejected says whether s refuses the pod or the node.
func (s *Status) Rejected() bool {
	return slices.Contains([]Code{Unschedulable, UnschedulableAndUnresolvable, Pending}, s.CodeOf())
}

// Message is the reasons as one line.
func (s *Status) Message() string {
	if s == nil {
		return ""
	}
	return strings.Join(s.Reasons, ", ")
}

// AsError is nil for Success, and else an error with the plugin's name.
func (s *Status) AsError() error {
	switch {
	case s.OK():
		return nil
	case s.Err != nil:
		return fmt.Errorf("plugin %s: %w", s.Plugin, s.Err)
	default:
		return errors.New(s.Message())
	}
}

// Named is s with the plugin's name; nil stays nil.
func (s *Status) Named(plugin string) *Status {
	if s != nil && s.Plugin == "" {
		s.Plugin = plugin
	}
	return s
}

package main

import (
	"context"
	"errors"
	"os/exec"
	"syscall"

	"mvdan.cc/sh/v3/interp"
)

// start runs a command from its file and waits for its end.
func start(ctx context.Context, shell interp.HandlerContext, path string, args []string) error {
	cmd := exec.CommandContext(ctx, path)
	cmd.Args, cmd.Env, cmd.Dir = args, environment(shell), shell.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = shell.Stdin, shell.Stdout, shell.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		if err != nil {
			return interp.ExitStatus(complain(shell.Stderr, args[0], err))
		}
		return nil
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		const signalled = 128
		return interp.ExitStatus(signalled + int(status.Signal()))
	}
	return interp.ExitStatus(exit.ExitCode())
}

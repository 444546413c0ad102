package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// Exit codes of a POSIX shell.
const (
	notRun   = 126
	notFound = 127
)

// shell runs -c SCRIPT, or what it reads from its input.
func shell(args []string) int {
	runner, err := interp.New(interp.StdIO(os.Stdin, os.Stdout, os.Stderr), interp.ExecHandlers(execute))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return notRun
	}
	if len(args) < 2 || args[0] != "-c" {
		return code(interact(runner, os.Stdin))
	}
	program, err := syntax.NewParser().Parse(strings.NewReader(args[1]), "")
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		return 2
	}
	if words := simple(program); words != nil {
		return replace(words)
	}
	return code(runner.Run(context.Background(), program))
}

func interact(runner *interp.Runner, in io.Reader) error {
	var err error
	parseErr := syntax.NewParser().Interactive(in, func(statements []*syntax.Stmt) bool {
		for _, statement := range statements {
			if err = runner.Run(context.Background(), statement); runner.Exited() {
				return false
			}
		}
		return true
	})
	return errors.Join(err, parseErr)
}

func code(err error) int {
	var status interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
	return notRun
}

// simple returns the words of a script that is one plain command: that one takes the
// shell's place, so that it gets the signals meant for process 1.
func simple(program *syntax.File) []string {
	if len(program.Stmts) != 1 || program.Stmts[0].Background || program.Stmts[0].Negated || len(program.Stmts[0].Redirs) > 0 {
		return nil
	}
	call, ok := program.Stmts[0].Cmd.(*syntax.CallExpr)
	if !ok || len(call.Assigns) > 0 {
		return nil
	}
	var words []string
	for _, word := range call.Args {
		if word.Lit() == "" {
			return nil
		}
		words = append(words, word.Lit())
	}
	if len(words) == 0 || interp.IsBuiltin(words[0]) {
		return nil
	}
	return words
}

func replace(words []string) int {
	path, err := find(words[0], os.Getenv("PATH"))
	if err == nil {
		err = syscall.Exec(path, words, os.Environ())
	}
	return complain(os.Stderr, words[0], err)
}

func complain(w io.Writer, command string, err error) int {
	if errors.Is(err, os.ErrPermission) {
		fmt.Fprintf(w, "%s: %s: Permission denied\n", os.Args[0], command)
		return notRun
	}
	fmt.Fprintf(w, "%s: %s: not found\n", os.Args[0], command)
	return notFound
}

// find looks a command up as a shell does: what is there but may not be run counts
// only when there is nothing better.
func find(command, path string) (string, error) {
	if strings.Contains(command, "/") {
		return command, executable(command)
	}
	denied := os.ErrNotExist
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, command)
		err := executable(file)
		if err == nil {
			return file, nil
		}
		if errors.Is(err, os.ErrPermission) {
			denied = err
		}
	}
	return "", denied
}

func executable(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return os.ErrPermission
	}
	return nil
}

func execute(interp.ExecHandlerFunc) interp.ExecHandlerFunc {
	return func(ctx context.Context, args []string) error {
		shell := interp.HandlerCtx(ctx)
		path, err := find(args[0], shell.Env.Get("PATH").String())
		if err != nil {
			return interp.ExitStatus(complain(shell.Stderr, args[0], err))
		}
		return start(ctx, shell, path, args)
	}
}

func environment(shell interp.HandlerContext) []string {
	var list []string
	shell.Env.Each(func(name string, value expand.Variable) bool {
		if value.Exported {
			list = append(list, name+"="+value.String())
		}
		return true
	})
	return list
}

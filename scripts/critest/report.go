package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
)

const reportFile = "report.json"

// skip is one line of the list: which specs do not apply, and why.
type skip struct {
	pattern *regexp.Regexp
	reason  string
}

// readSkips reads lines of the form "REGEX # REASON". One without a reason is an error.
func readSkips(path string) ([]skip, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var skips []skip
	for number, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, reason, _ := strings.Cut(line, " # ")
		if strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s:%d: %q is skipped without a reason", path, number+1, pattern)
		}
		compiled, err := regexp.Compile(strings.TrimSpace(pattern))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number+1, err)
		}
		skips = append(skips, skip{compiled, reason})
	}
	return skips, nil
}

// spec is one of the report's.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	NumAttempts             int
	Failure                 struct{ Message string }
}

func (s spec) name() string {
	return strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
}

func readReport(path string) ([]spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the suite left no report: %w", err)
	}
	var suites []struct{ SpecReports []spec }
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("reading the suite's report: %w", err)
	}
	var specs []spec
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			// Measurements are no validation, and are left out by the suite itself.
			if spec.LeafNodeType == "It" && !strings.Contains(spec.name(), "benchmark") {
				specs = append(specs, spec)
			}
		}
	}
	return specs, nil
}

// judge prints the counts. It is an error if a spec has failed, if one was skipped that
// the list does not name, or if the list names what no spec is.
func judge(path string, skips []skip, focused bool, suiteErr error) error {
	specs, err := readReport(path)
	if err != nil {
		return errors.Join(suiteErr, err)
	}
	var errs []error
	count, used := map[string]int{}, map[int]int{}
	for _, spec := range specs {
		count[spec.State]++
		switch spec.State {
		case "passed":
			if spec.NumAttempts > 1 {
				fmt.Printf("critest: passed at try %d: %s\n", spec.NumAttempts, spec.name())
			}
		case "skipped":
			if index := match(skips, spec.name()); index >= 0 {
				used[index]++
			} else if !focused {
				errs = append(errs, fmt.Errorf("skipped without a reason in the list: %s (%s)", spec.name(), spec.Failure.Message))
			}
		default:
			errs = append(errs, fmt.Errorf("%s: %s: %s", spec.State, spec.name(), spec.Failure.Message))
		}
	}
	fmt.Printf("critest: %d of %d specs passed, %d failed, %d skipped\n", count["passed"], len(specs), len(specs)-count["passed"]-count["skipped"], count["skipped"])
	for i, skip := range skips {
		if used[i] == 0 && !focused {
			errs = append(errs, fmt.Errorf("no skipped spec matches %q: take it off the list", skip.pattern))
			continue
		}
		fmt.Printf("  %2d skipped: %s\n", used[i], skip.reason)
	}
	if count["passed"] == 0 {
		errs = append(errs, errors.New("no spec has passed"))
	}
	return errors.Join(append(errs, suiteErr)...)
}

func match(skips []skip, name string) int {
	for i, skip := range skips {
		if skip.pattern.MatchString(name) {
			return i
		}
	}
	return -1
}

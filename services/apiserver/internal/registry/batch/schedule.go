package batch

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// scheduleField is one of the five fields of a schedule, with its bounds and
// the names that stand for numbers.
type scheduleField struct {
	low, high int
	names     []string // the first is low (months) or 0 (days)
}

func scheduleFields() []scheduleField {
	return []scheduleField{
		{low: 0, high: 59},
		{low: 0, high: 23},
		{low: 1, high: 31},
		{low: 1, high: 12, names: []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
		{low: 0, high: 6, names: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
	}
}

// parseSchedule checks a schedule in cron's five fields, or one of the words
// that stand for some.
func parseSchedule(schedule string) error {
	if schedule == "" {
		return errors.New("empty spec string")
	}
	if strings.HasPrefix(schedule, "TZ=") || strings.HasPrefix(schedule, "CRON_TZ=") {
		zone, rest, found := strings.Cut(schedule, " ")
		if !found {
			return fmt.Errorf("no schedule after %s", zone)
		}
		_, name, _ := strings.Cut(zone, "=")
		if _, err := time.LoadLocation(name); err != nil {
			return fmt.Errorf("provided bad location %s: %w", name, err)
		}
		schedule = strings.TrimSpace(rest)
	}
	if strings.HasPrefix(schedule, "@") {
		return parseWord(schedule)
	}
	fields := strings.Fields(schedule)
	if len(fields) != 5 {
		return fmt.Errorf("expected exactly 5 fields, found %d: %s", len(fields), fields)
	}
	for i, f := range scheduleFields() {
		for _, part := range strings.Split(fields[i], ",") {
			if part == "" {
				continue
			}
			if err := f.parse(part); err != nil {
				return err
			}
		}
	}
	return nil
}

func parseWord(word string) error {
	switch word {
	case "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly":
		return nil
	}
	if every, ok := strings.CutPrefix(word, "@every "); ok {
		if _, err := time.ParseDuration(every); err != nil {
			return fmt.Errorf("failed to parse duration %s: %w", word, err)
		}
		return nil
	}
	return fmt.Errorf("unrecognized descriptor: %s", word)
}

// parse checks one range: a number, low-high or * (or ?), with an optional
// /step.
func (f scheduleField) parse(text string) error {
	bounds, step, stepped := strings.Cut(text, "/")
	if strings.Contains(step, "/") {
		return fmt.Errorf("too many slashes: %s", text)
	}
	low, high, single := f.low, f.high, false
	if first, last, ranged := strings.Cut(bounds, "-"); bounds != "*" && bounds != "?" {
		var err error
		if low, err = f.number(first); err != nil {
			return err
		}
		single = !ranged
		high = low
		if ranged {
			if strings.Contains(last, "-") {
				return fmt.Errorf("too many hyphens: %s", text)
			}
			if high, err = f.number(last); err != nil {
				return err
			}
		}
	}
	if stepped {
		n, err := f.plain(step)
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("step of range should be a positive number: %s", text)
		}
		if single {
			high = f.high
		}
	}
	switch {
	case low < f.low:
		return fmt.Errorf("beginning of range (%d) below minimum (%d): %s", low, f.low, text)
	case high > f.high:
		return fmt.Errorf("end of range (%d) above maximum (%d): %s", high, f.high, text)
	case low > high:
		return fmt.Errorf("beginning of range (%d) beyond end of range (%d): %s", low, high, text)
	}
	return nil
}

func (f scheduleField) number(text string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.low + i, nil
		}
	}
	return f.plain(text)
}

func (scheduleField) plain(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("failed to parse int from %s: %w", text, err)
	}
	if n < 0 {
		return 0, fmt.Errorf("negative number (%d) not allowed: %s", n, text)
	}
	return n, nil
}

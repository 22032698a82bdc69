package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"

	"github.com/natkit/natkit/internal/load"
)

// outcome is a load generator's own report of its run.
type outcome struct {
	Completed, Failed int64
	PerSecond         float64
}

// Every tool's own words for what it counted. ab counts requests that failed
// among the complete ones.
var (
	abComplete = regexp.MustCompile(`(?m)^Complete requests:\s+(\d+)$`)
	abFailed   = regexp.MustCompile(`(?m)^Failed requests:\s+(\d+)$`)
	abRate     = regexp.MustCompile(`(?m)^Requests per second:\s+([\d.]+) `)

	wrkComplete = regexp.MustCompile(`(?m)^\s*(\d+) requests in `)
	wrkRate     = regexp.MustCompile(`(?m)^Requests/sec:\s+([\d.]+)$`)
	wrkErrors   = regexp.MustCompile(`(?m)^\s*Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)$`)
	wrkStatus   = regexp.MustCompile(`(?m)^\s*Non-2xx or 3xx responses: (\d+)$`)

	straceTotal = regexp.MustCompile(`(?m)^\s*100\.00\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?total$`)
)

func parseAB(text []byte) (outcome, error) {
	var o outcome
	var err error
	if o.Completed, err = findInt("ab", text, abComplete); err != nil {
		return outcome{}, err
	}
	if o.Failed, err = findInt("ab", text, abFailed); err != nil {
		return outcome{}, err
	}
	if o.PerSecond, err = findFloat("ab", text, abRate); err != nil {
		return outcome{}, err
	}
	o.Completed -= o.Failed
	return o, nil
}

func parseWrk(text []byte) (outcome, error) {
	var o outcome
	var err error
	if o.Completed, err = findInt("wrk", text, wrkComplete); err != nil {
		return outcome{}, err
	}
	if o.PerSecond, err = findFloat("wrk", text, wrkRate); err != nil {
		return outcome{}, err
	}
	for _, line := range []*regexp.Regexp{wrkErrors, wrkStatus} { // printed only where there were some
		if m := line.FindSubmatch(text); m != nil {
			for _, group := range m[1:] {
				n, err := strconv.ParseInt(string(group), 10, 64)
				if err != nil {
					return outcome{}, fmt.Errorf("read wrk's output: %w", err)
				}
				o.Failed += n
			}
		}
	}
	return o, nil
}

func parseNatkit(text []byte) (outcome, error) {
	var r load.Result
	if err := json.Unmarshal(text, &r); err != nil {
		return outcome{}, fmt.Errorf("read natkit's JSON: %w", err)
	}
	if r.Completed == 0 {
		return outcome{}, fmt.Errorf("read natkit's JSON: no completed request in %.200q", text)
	}
	return outcome{Completed: r.Completed, Failed: r.Failed, PerSecond: r.RequestsPerSecond}, nil
}

// parseStrace gives the number of system calls in the table of `strace -c`.
func parseStrace(text []byte) (int64, error) { return findInt("strace", text, straceTotal) }

func find(tool string, text []byte, what *regexp.Regexp) (string, error) {
	m := what.FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("read %s's output: no line like %s in:\n%s", tool, what, text)
	}
	return string(m[1]), nil
}

func findInt(tool string, text []byte, what *regexp.Regexp) (int64, error) {
	s, err := find(tool, text, what)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s's output: %w", tool, err)
	}
	return n, nil
}

func findFloat(tool string, text []byte, what *regexp.Regexp) (float64, error) {
	s, err := find(tool, text, what)
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s's output: %w", tool, err)
	}
	return f, nil
}

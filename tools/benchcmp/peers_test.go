package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/tools/bench"
)

// TestPeers: programs of others are measured where they are installed; where not, the suite says so.
func TestPeers(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	has := func(s bench.Suite, name string) bool {
		return slices.ContainsFunc(s.Subjects, func(sub bench.Subject) bool { return sub.Name == name })
	}
	for name, subjects := range map[string][]string{"xdp-forward": {"xdp-forward, no NAT"}, "einat": {"einat", "kernel masquerade"}} {
		without := planesSuite("natkit")
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		with := planesSuite("natkit")
		for _, subject := range subjects {
			if has(without, subject) || !has(with, subject) {
				t.Errorf("%s without and with %s: %t, %t", subject, name, has(without, subject), has(with, subject))
			}
		}
		missing := name + " not found"
		if !strings.Contains(without.Method, missing) || strings.Contains(with.Method, missing) || len(with.Programs) != len(without.Programs)+1 {
			t.Errorf("without %s: %s; with it: %s, %v", name, without.Method, with.Method, with.Programs)
		}
	}
}

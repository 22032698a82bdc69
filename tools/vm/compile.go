package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// goPackage is the part of `go list`'s output that is used.
type goPackage struct {
	ImportPath, Dir           string
	TestGoFiles, XTestGoFiles []string
}

func (p goPackage) short() string { return strings.TrimPrefix(p.ImportPath, modulePath+"/") }

func (p goPackage) hasTests() bool { return len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 }

// tree builds from a checkout.
type tree struct{ root string }

// goTool runs Go for this checkout; what is built runs without the host's libraries.
func (t tree) goTool(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(t.root, "scripts/go"), args...)
	cmd.Dir = t.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	return cmd
}

// list gives the packages with tests.
func (t tree) list(ctx context.Context, patterns []string) ([]goPackage, error) {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	args := append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, patterns...)
	text, err := t.goTool(ctx, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages %s: %w", strings.Join(patterns, " "), err)
	}
	var found []goPackage
	for dec := json.NewDecoder(bytes.NewReader(text)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("list the packages: %w", err)
		}
		if p.hasTests() {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no tests in %s", strings.Join(patterns, " "))
	}
	return found, nil
}

// build makes a program of the checkout.
func (t tree) build(ctx context.Context, pkg, to string) error {
	if err := t.goTool(ctx, "build", "-trimpath", "-ldflags=-s -w", "-o", to, pkg).Run(); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	return nil
}

// compileTests builds the test binary of each package below dir and returns their paths.
func (t tree) compileTests(ctx context.Context, list []chosen, dir string) (map[string]string, error) {
	binaries := map[string]string{}
	for i, batch := range batches(list) {
		// Go takes a name that ends in a slash for a directory.
		to := filepath.Join(dir, fmt.Sprint(i)) + "/"
		if err := os.MkdirAll(to, 0o755); err != nil {
			return nil, err
		}
		args := []string{"test", "-c", "-ldflags=-s -w", "-o", to}
		for _, c := range batch {
			args = append(args, c.pkg.ImportPath)
			binaries[c.pkg.ImportPath] = filepath.Join(to, path.Base(c.pkg.ImportPath)+".test")
		}
		if err := t.goTool(ctx, args...).Run(); err != nil {
			return nil, fmt.Errorf("compile the tests: %w", err)
		}
	}
	return binaries, nil
}

// batches splits a list so that no two packages of one have the same last name,
// which is that of the binary.
func batches(list []chosen) [][]chosen {
	var all [][]chosen
	used := map[string]int{}
	for _, c := range list {
		name := path.Base(c.pkg.ImportPath)
		at := used[name]
		used[name]++
		if at == len(all) {
			all = append(all, nil)
		}
		all[at] = append(all[at], c)
	}
	return all
}

package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// Part is something that is linked into natkit under a licence of its own.
type Part struct {
	// Name is a module with its version, or what else it is.
	Name string
	// Dir has its licence, at its top.
	Dir string
}

// licenceFile matches the files in which licences of Go modules and their notices stand.
var licenceFile = regexp.MustCompile(`(?i)^(.*\.)?(licen[cs]e|copying|notice|copyright|patents)([-_.].*)?$`)

// licences is the text of the licences of these parts, with their notices: what is linked statically is distributed with
// them. A part without any is an error.
func licences(parts []Part) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString("Linked into natkit, which itself is under the Apache License 2.0, are these modules, with their licences and notices.\n")
	for _, p := range parts {
		if p.Dir == "" {
			return nil, fmt.Errorf("read the licence of %s: it is not in the module cache ('go mod download' fetches it)", p.Name)
		}
		files, err := os.ReadDir(p.Dir)
		if err != nil {
			return nil, fmt.Errorf("read the licence of %s: %w", p.Name, err)
		}
		found := false
		for _, f := range files { // in the order of their names
			if !f.Type().IsRegular() || !licenceFile.MatchString(f.Name()) || strings.HasSuffix(f.Name(), ".go") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(p.Dir, f.Name()))
			if err != nil {
				return nil, fmt.Errorf("read the licence of %s: %w", p.Name, err)
			}
			found = true
			fmt.Fprintf(&out, "\n%s\n%s: %s\n\n%s\n", strings.Repeat("=", 79), p.Name, f.Name(), bytes.TrimSpace(bytes.ReplaceAll(text, []byte("\r"), nil)))
		}
		if !found {
			return nil, fmt.Errorf("read the licence of %s: no file LICENSE, COPYING or NOTICE in %s", p.Name, p.Dir)
		}
	}
	return out.Bytes(), nil
}

// linkedParts returns what is linked into a program of an architecture: its modules, the standard library and uPlot.
func linkedParts(root, arch, tags string, binary []byte) ([]Part, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("read the modules of the program: %w", err)
	}
	goroot, err := goSays(root, arch, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	listed, err := goSays(root, arch, "list", "-deps", "-tags", tags, "-f",
		`{{with .Module}}{{with or .Replace .}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}{{end}}`, "./cmd/natkit")
	if err != nil {
		return nil, err
	}
	parts := []Part{{"the standard library of Go, " + info.GoVersion, strings.TrimSpace(goroot)}, {"uPlot", filepath.Join(root, "internal/report/assets")}}
	return append(parts, partsOf(info.Deps, listed)...), nil
}

// partsOf finds modules in a list with lines "PATH@VERSION DIR"; one that is not in it has no directory.
func partsOf(modules []*debug.Module, listed string) (parts []Part) {
	dirs := map[string]string{}
	for line := range strings.Lines(listed) {
		module, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		dirs[module] = dir
	}
	for _, m := range modules {
		if m.Replace != nil {
			m = m.Replace
		}
		name := m.Path + "@" + m.Version
		parts = append(parts, Part{name, dirs[name]})
	}
	slices.SortFunc(parts, func(a, b Part) int { return strings.Compare(a.Name, b.Name) })
	return parts
}

// goSays is what the Go of the sources prints.
func goSays(root, arch string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(root, "scripts", "go"), args...)
	cmd.Dir, cmd.Env = root, environment(arch)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return "", fmt.Errorf("ask go %s: %w", args[0], err)
	}
	return string(out), nil
}

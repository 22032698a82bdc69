package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Architectures are those of packages, in the words of Go, which Debian shares.
var architectures = []string{"amd64", "arm64"}

// Variant is natkit, or the one that cannot change a host.
type Variant struct{ Name, Tags string }

var variants = []Variant{{"natkit", ""}, {"natkit-readonly", "readonly"}}

// build compiles natkit so that the same sources and the same Go give the same bytes, wherever they lie.
func build(root, to string, s Source, v Variant, arch string) error {
	cmd := exec.Command(filepath.Join(root, "scripts", "go"), "build", "-trimpath", "-tags", v.Tags,
		"-ldflags", "-s -w -buildid= -X 'main.version="+s.Words+"'", "-o", to, "./cmd/natkit")
	cmd.Dir = root
	cmd.Env = environment(arch)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s for %s: %w", v.Name, arch, err)
	}
	return nil
}

// environment has Go build for an architecture, whatever is set here.
func environment(arch string) []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOWORK=off")
}

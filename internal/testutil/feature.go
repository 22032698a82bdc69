//go:build linux

package testutil

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inVM is set in the VM of `make test-vm`: there only the VM itself can have disabled
// a feature of its kernel.
const inVM = "NATKIT_VM"

// Feature is something that a kernel can be built without.
type Feature struct {
	Name string
	// Symbols are the options of the kernel's configuration that bring it, all of them.
	Symbols []string
	// Since is the first kernel that has it, such as "5.13"; empty for one that is
	// older than all that natkit runs on.
	Since string
	// Probe tries it. Its error is that of the kernel.
	Probe func() error
	// Off are the errors of Probe that mean that the feature is disabled on this machine,
	// by a sysctl or by a container. Refused permission is always one.
	Off []error
}

// NeedFeature skips a test that needs what this machine's kernel has not. Where the
// kernel should have it, by its configuration and version, the test fails: that it
// is missing would hide that something was not tested.
func NeedFeature(t testing.TB, f Feature) {
	t.Helper()
	err := f.Probe()
	if err == nil {
		return
	}
	k := kernel{vm: os.Getenv(inVM) != ""}
	if k.release, k.err = release(); k.err == nil {
		k.config, k.err = configOf(k.release)
	}
	what, fail := k.judge(f, err)
	if fail {
		t.Fatal(what)
	}
	Impossible(t, what)
}

// kernel is what is known of the running one.
type kernel struct {
	vm      bool
	release string
	config  map[string]string
	err     error // why there is no config
}

// judge returns the conclusion from a probe's error: the reason, and whether the kernel
// should have the feature.
func (k kernel) judge(f Feature, probe error) (what string, fail bool) {
	needs := fmt.Sprintf("needs %s (%s)", f.Name, strings.Join(f.Symbols, ", "))
	off := slices.ContainsFunc(append(f.Off, fs.ErrPermission), func(e error) bool { return errors.Is(probe, e) })
	switch {
	case off && !k.vm:
		return fmt.Sprintf("%s, which is refused or switched off here: %v", needs, probe), false
	case k.err != nil:
		return fmt.Sprintf("%s: %v; whether the kernel should have it is not known: %v", needs, probe, k.err), k.vm
	case f.Since != "" && olderThan(k.release, f.Since):
		return fmt.Sprintf("%s: a kernel since %s, this one is %s", needs, f.Since, k.release), false
	}
	for _, symbol := range f.Symbols {
		if v := k.config[symbol]; v != "y" && v != "m" {
			return fmt.Sprintf("%s: this kernel is built without %s", needs, symbol), false
		}
	}
	return fmt.Sprintf("%s: the kernel's configuration has it, and yet: %v (is a module of it not installed?)", needs, probe), true
}

func release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("read the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

// olderThan compares the first two numbers of kernel releases.
func olderThan(release, since string) bool {
	var a, b [2]int
	_, errA := fmt.Sscanf(release, "%d.%d", &a[0], &a[1])
	_, errB := fmt.Sscanf(since, "%d.%d", &b[0], &b[1])
	return errA == nil && errB == nil && slices.Compare(a[:], b[:]) < 0
}

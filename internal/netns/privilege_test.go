package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCheck(t *testing.T) {
	bpf := Need{BPF, "to load programs"}
	net := Need{NetAdmin, "to make links"}
	for _, tt := range []struct {
		name  string
		have  uint64
		needs []Need
		want  string
	}{
		{"nothing needed", 0, nil, ""},
		{"the narrow one", 1 << unix.CAP_BPF, []Need{bpf}, ""},
		{"the wide one", 1 << unix.CAP_SYS_ADMIN, []Need{bpf}, ""},
		{"one of two", 1 << unix.CAP_BPF, []Need{bpf, net}, "needs CAP_NET_ADMIN (to make links); run it as root, or with CAP_NET_ADMIN"},
		{"none", 0, []Need{bpf, net},
			"needs CAP_BPF or CAP_SYS_ADMIN (to load programs) and CAP_NET_ADMIN (to make links); run it as root, or with CAP_BPF and CAP_NET_ADMIN"},
		{"one without a name here", 0, []Need{{[]int{unix.CAP_CHOWN}, "to give away"}}, "needs capability 0 (to give away); run it as root, or with capability 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := check(tt.have, tt.needs); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestEffective: the numbers above 31 are in the second word of what the kernel
// returns; a process of another user has none of them.
func TestEffective(t *testing.T) {
	have, err := effective()
	if err != nil {
		t.Fatal(err)
	}
	if unix.Geteuid() != 0 && have&(1<<unix.CAP_BPF) != 0 {
		t.Skip("this user was given CAP_BPF")
	}
	if unix.Geteuid() == 0 && have == 0 {
		t.Error("root has no capability at all")
	}
}

func TestDenied(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{unix.EPERM, "operation not permitted; run it as root, or with CAP_BPF and CAP_NET_ADMIN"},
		{&fs.PathError{Op: "open", Path: "/x", Err: unix.EACCES}, "open /x: permission denied; run it as root, or with CAP_BPF and CAP_NET_ADMIN"},
		{unix.EINVAL, "invalid argument"},
		{fmt.Errorf("enter: %w", Denied(unix.EPERM, Ptrace)), "enter: operation not permitted; run it as root, or with CAP_SYS_PTRACE"},
	} {
		if got := Denied(tt.err, BPF, NetAdmin, NetAdmin); got.Error() != tt.want || !errors.Is(got, tt.err) {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}

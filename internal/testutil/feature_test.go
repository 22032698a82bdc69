//go:build linux

package testutil

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestJudge(t *testing.T) {
	netem := Feature{Name: "netem", Symbols: []string{"CONFIG_NET_SCH_NETEM", "CONFIG_NET"}, Since: "2.6"}
	young := Feature{Name: "tcx", Symbols: []string{"CONFIG_NET"}, Since: "6.6"}
	ipv6 := Feature{Name: "IPv6", Symbols: []string{"CONFIG_NET"}, Off: []error{unix.EADDRNOTAVAIL}}
	all := map[string]string{"CONFIG_NET_SCH_NETEM": "m", "CONFIG_NET": "y"}
	some := map[string]string{"CONFIG_NET": "y"}
	const old, new = "6.1.0-56-cloud-amd64", "6.12.117+deb12-cloud-amd64"
	for _, tt := range []struct {
		name  string
		f     Feature
		k     kernel
		probe error
		want  string
		fail  bool
	}{
		{"built without", netem, kernel{release: new, config: some}, unix.ENOENT, "needs netem (CONFIG_NET_SCH_NETEM, CONFIG_NET): this kernel is built without CONFIG_NET_SCH_NETEM", false},
		{"built with", netem, kernel{release: new, config: all}, unix.ENOENT, "has it, and yet: no such file", true},
		{"too old", young, kernel{release: old, config: all}, unix.EINVAL, "a kernel since 6.6, this one is 6.1.0-56", false},
		{"new enough", young, kernel{release: new, config: all}, unix.EINVAL, "and yet", true},
		{"no config", netem, kernel{release: new, err: errors.New("no file")}, unix.ENOENT, "not known: no file", false},
		{"no config in the VM", netem, kernel{vm: true, err: errors.New("no file")}, unix.ENOENT, "not known: no file", true},
		{"refused", netem, kernel{release: new, config: all}, unix.EPERM, "refused or switched off", false},
		{"refused in the VM", netem, kernel{vm: true, release: new, config: all}, unix.EPERM, "and yet", true},
		{"switched off", ipv6, kernel{release: new, config: all}, unix.EADDRNOTAVAIL, "switched off", false},
		{"switched off in the VM", ipv6, kernel{vm: true, release: new, config: all}, unix.EADDRNOTAVAIL, "and yet", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			what, fail := tt.k.judge(tt.f, tt.probe)
			if fail != tt.fail || !strings.Contains(what, tt.want) {
				t.Errorf("%v %q, want %v … %q", fail, what, tt.fail, tt.want)
			}
		})
	}
}

func TestOlderThan(t *testing.T) {
	for _, tt := range []struct {
		release, since string
		want           bool
	}{
		{"6.1.0-56-cloud-amd64", "6.12", true}, {"6.12.117+deb12", "6.12", false}, {"6.12.117", "6.2", false},
		{"5.15.0", "6.1", true}, {"10.0", "9.9", false}, {"rubbish", "6.1", false},
	} {
		if got := olderThan(tt.release, tt.since); got != tt.want {
			t.Errorf("olderThan(%q, %q) = %v", tt.release, tt.since, got)
		}
	}
}

func TestParseConfig(t *testing.T) {
	got, err := parseConfig(strings.NewReader("# Linux\nCONFIG_NET=y\n# CONFIG_IP_VS is not set\nCONFIG_HZ=250\nCONFIG_TUN=m\n"))
	if err != nil || len(got) != 3 || got["CONFIG_NET"] != "y" || got["CONFIG_TUN"] != "m" || got["CONFIG_IP_VS"] != "" {
		t.Errorf("%v %v", got, err)
	}
	if _, err := parseConfig(strings.NewReader("<html>")); err == nil {
		t.Error("rubbish is a configuration")
	}
}

// TestProbesDoNotLie: whatever the running kernel has, a probe and its
// configuration must not contradict each other.
func TestProbesDoNotLie(t *testing.T) {
	NeedRoot(t)
	for _, f := range []Feature{IPVS, FlowTable, Netem, Kprobe, Fentry, DropMonitor, BTF, ConntrackProcfs, IPv6, KernelLogWrite} {
		t.Run(strings.ReplaceAll(f.Name, "/", "_"), func(t *testing.T) { NeedFeature(t, f) })
	}
}

func TestPatience(t *testing.T) {
	for value, want := range map[string]time.Duration{"": time.Second, "10": 10 * time.Second, "0": time.Second, "x": time.Second} {
		t.Setenv(timeFactor, value)
		if got := Patience(time.Second); got != want {
			t.Errorf("factor %q: %v, want %v", value, got, want)
		}
	}
}

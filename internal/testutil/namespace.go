//go:build linux

package testutil

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/vishvananda/netlink"
)

// Namespace is a network namespace of the test's own, which ends with it; its name is the
// test's where none is given. Needs root.
func Namespace(t testing.TB, name ...string) *netns.Handle {
	t.Helper()
	NeedRoot(t)
	ns, err := netns.New(strings.Join(append(name, t.Name())[:1], ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// Inside runs a function in a namespace.
func Inside(t testing.TB, ns *netns.Handle, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatalf("in %s: %v", ns.Name(), err)
	}
}

// Run runs a program in a namespace and returns its output.
func Run(t testing.TB, ns *netns.Handle, stdin, program string, args ...string) string {
	t.Helper()
	path := NeedProgram(t, program)
	var out []byte
	Inside(t, ns, func() (err error) {
		cmd := exec.Command(path, args...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%s %s: %w\n%s%s", program, strings.Join(args, " "), err, stdin, out)
		}
		return err
	})
	return string(out)
}

// Nft loads rules into a namespace.
func Nft(t testing.TB, ns *netns.Handle, rules string) {
	t.Helper()
	Run(t, ns, rules, "nft", "-f", "-")
}

// Sysctl sets a value, whose name has slashes, in a namespace.
func Sysctl(t testing.TB, ns *netns.Handle, name, value string) {
	t.Helper()
	Inside(t, ns, func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0) })
}

// End is one end of a veth pair: an interface and its addresses, with prefix lengths.
type End struct {
	Netns     *netns.Handle
	Name      string
	Addresses []string
}

// Veth joins two namespaces by a veth pair and returns when packets pass: both ends have
// their addresses and a carrier, and know each other as neighbours. A packet that is sent
// earlier, such as the first question for a neighbour, is dropped.
func Veth(t testing.TB, a, b End) {
	t.Helper()
	ends := [2]End{a, b}
	var links [2]*netns.Links
	for i, e := range ends {
		links[i] = Links(t, e.Netns)
	}
	if err := links[0].AddVeth(netns.VethEnd{Name: a.Name}, links[1], netns.VethEnd{Name: b.Name}); err != nil {
		t.Fatalf("add veth %s-%s: %v", a.Name, b.Name, err)
	}
	for i, e := range ends {
		Carrier(t, links[i], e.Name)
		Addresses(t, links[i], e.Name, e.Addresses...)
		link, err := links[i].LinkByName(e.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range e.Addresses {
			if err := links[1-i].AddNeighbour(ends[1-i].Name, netip.MustParsePrefix(text).Addr(), link.Attrs().HardwareAddr); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Links changes those of a namespace.
func Links(t testing.TB, ns *netns.Handle) *netns.Links {
	t.Helper()
	l, err := ns.Links()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// Addresses adds addresses, with prefix lengths, to an interface and sets it up.
func Addresses(t testing.TB, l *netns.Links, name string, addresses ...string) {
	t.Helper()
	for _, text := range addresses {
		if err := l.AddAddress(name, netip.MustParsePrefix(text)); err != nil {
			t.Fatalf("add %s to %s: %v", text, name, err)
		}
	}
	if err := l.SetUp(name); err != nil {
		t.Fatalf("set %s up: %v", name, err)
	}
}

// Carrier waits until the kernel has activated an interface that is up.
func Carrier(t testing.TB, l *netns.Links, name string) {
	t.Helper()
	Eventually(t, "carrier of "+name, func() bool {
		link, err := l.LinkByName(name)
		return err == nil && link.Attrs().OperState == netlink.OperUp
	})
}

// Routes adds default routes.
func Routes(t testing.TB, ns *netns.Handle, vias ...string) {
	t.Helper()
	for _, via := range vias {
		a, everything := netip.MustParseAddr(via), netip.MustParsePrefix("0.0.0.0/0")
		if a.Is6() {
			everything = netip.MustParsePrefix("::/0")
		}
		if err := Links(t, ns).AddRoute(everything, a); err != nil {
			t.Fatalf("add a default route via %s: %v", via, err)
		}
	}
}

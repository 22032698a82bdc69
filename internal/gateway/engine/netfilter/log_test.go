package netfilter_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway/behaviour"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/testutil"
)

// kernelLog are the lines that the kernel logs from now on.
func kernelLog(t *testing.T) (lines func() []string) {
	t.Helper()
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.Seek(fd, 0, io.SeekEnd); err != nil {
		t.Fatal(err)
	}
	return func() (all []string) {
		record := make([]byte, 8192)
		for {
			switch n, err := unix.Read(fd, record); {
			case errors.Is(err, unix.EAGAIN):
				return all
			case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR): // some were overwritten
			case err != nil:
				t.Fatal(err)
			default:
				_, text, _ := strings.Cut(string(record[:n]), ";")
				all = append(all, text)
			}
		}
	}
}

// TestLog: the first packet of each connection that a rule translates is logged as it is before, no other rule's, and
// not more often than its rate.
func TestLog(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.KernelLogWrite)
	testutil.NeedFeature(t, testutil.Hairpin)
	testutil.LockHost(t)
	b := newBed(t, netfilter.Apply, fmt.Sprintf(`
  nat:
    - snat: {from: 192.168.0.2, to: 203.0.113.7}
      log: {prefix: "two-%[1]d "}
    - snat: {from: 192.168.0.4, to: 203.0.113.8}
    - snat: {from: 192.168.0.6, to: 203.0.113.9}
      log: {prefix: "six-%[1]d ", rate: 1/s}
    - dnat: {on: 203.0.113.1, port: [udp/53, udp/54], to: 192.168.0.2, hairpin: on}
      log: {prefix: "dns-%[1]d "}
    - static: {inside: 192.168.0.8, outside: 203.0.113.11}
      log: {prefix: "one-%[1]d "}
`, os.Getpid()))
	const all = "/proc/sys/net/netfilter/nf_log_all_netns"
	was, err := os.ReadFile(all)
	if err == nil {
		err = os.WriteFile(all, []byte("1"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile(all, was, 0) })
	lines := kernelLog(t)
	for range 3 {
		b.out("192.168.0.2:4000", "198.18.0.10:53", "203.0.113.7:4000")
	}
	b.out("192.168.0.4:4000", "198.18.0.10:53", "203.0.113.8:4000")
	const many = 100
	for port := range many {
		b.out(fmt.Sprintf("192.168.0.6:%d", 5000+port), "198.18.0.10:53", fmt.Sprintf("203.0.113.9:%d", 5000+port))
	}
	b.in("198.18.0.10:4000", "203.0.113.1:54", "192.168.0.2:54")
	b.in("198.18.0.10:4000", "203.0.113.11:99", "192.168.0.8:99")
	b.udp(behaviour.A, behaviour.A, "192.168.0.4:7000", "203.0.113.1:53")
	count := map[string]int{}
	text := lines()
	for _, line := range text {
		for _, rule := range []string{"two", "six", "dns", "one", "natkit"} {
			if strings.HasPrefix(line, fmt.Sprintf("%s-%d ", rule, os.Getpid())) || strings.HasPrefix(line, rule+" nat[") {
				count[rule]++
			}
		}
	}
	if count["two"] != 1 || count["dns"] != 2 || count["one"] != 1 || count["natkit"] != 0 || count["six"] < 5 || count["six"] >= many {
		t.Errorf("%v\n%s", count, strings.Join(text, ""))
	}
	for _, want := range []string{"two-%d IN=lan OUT=wan ", "dns-%d IN=wan OUT= ", "dns-%d IN=lan OUT= "} {
		if want = fmt.Sprintf(want, os.Getpid()); !strings.Contains(strings.Join(text, ""), want) {
			t.Errorf("no %q in\n%s", want, strings.Join(text, ""))
		}
	}
	b.countedAll(map[string]uint64{"nat[0] snat": 1, "nat[1] snat": 2, "nat[2] snat": many})
}

package cli

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// TestDeleteAsks answers the question of conntrack delete at a terminal.
func TestDeleteAsks(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.ShareHost(t) // other tests shorten the hash table, which takes no entries then
	ns, err := netns.New(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	orig := conntrack.Tuple{Src: netip.MustParseAddr("198.18.0.1"), Dst: netip.MustParseAddr("198.18.0.2"), Proto: unix.IPPROTO_UDP, SrcPort: 1, DstPort: 2}
	n := 0
	if _, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: orig.Mirror(), Timeout: 3600}
		n++
		return n == 1
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		answer, says string
		left         int64
	}{
		{"", "nothing was deleted", 1}, {"n\n", "nothing was deleted", 1}, {"y\n", "deleted 1 connection", 0},
	} {
		var stdout, stderr bytes.Buffer
		env := Env{Stdin: strings.NewReader(c.answer), Stdout: &stdout, Stderr: &stderr, StdinTerminal: true, Getenv: func(string) string { return "" }}
		code := -1
		if err := ns.Do(func() error {
			// This thread's namespace, by its number: other threads are elsewhere.
			code = Run(t.Context(), env, []string{"conntrack", "delete", "-p", "udp", "--pid", fmt.Sprint(unix.Gettid())})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if code != 0 || !strings.Contains(stdout.String(), c.says) || !strings.Contains(stderr.String(), "delete? [y/N] ") {
			t.Errorf("%q: exit code %d\n%s%s", c.answer, code, &stdout, &stderr)
		}
		if u, err := dump.Count(ns); err != nil || u.Entries != c.left {
			t.Errorf("%q: %d entries left, %v; want %d", c.answer, u.Entries, err, c.left)
		}
	}
}

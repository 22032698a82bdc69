package collect

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// among finds these namespaces only.
func among(all ...*netns.Handle) func(time.Time) ([]netns.Found, bool, error) {
	return func(time.Time) (found []netns.Found, cut bool, missed error) {
		for _, ns := range all {
			found = append(found, netns.Found{Inode: ns.Inode(), Path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())})
		}
		return found, false, nil
	}
}

// unanswered is a namespace with DNAT to a server that does not answer, and a few connections to it.
func unanswered(t *testing.T) *netns.Handle {
	t.Helper()
	ns, server := testutil.Namespace(t, "sick"), testutil.Namespace(t, "server")
	testutil.Veth(t, testutil.End{Netns: ns, Name: "eth0", Addresses: []string{"198.18.0.1/24"}}, testutil.End{Netns: server, Name: "eth0", Addresses: []string{"198.18.0.9/24"}})
	testutil.Nft(t, server, "table ip t { chain i { type filter hook input priority 0; udp dport 5353 drop; }; }")
	testutil.Nft(t, ns, "table ip t { chain o { type nat hook output priority -100; udp dport 53 dnat to 198.18.0.9:5353; }; }")
	testutil.Inside(t, ns, func() error {
		for range 5 {
			c, err := net.Dial("udp", "198.18.0.9:53")
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
		}
		return nil
	})
	return ns
}

func surveyOf(t *testing.T, o SurveyOptions) *snapshot.Others {
	t.Helper()
	rec, err := Record(t.Context(), RecordOptions{Options: Options{Netns: testutil.Namespace(t, "own")}, Others: &o})
	if err != nil {
		t.Fatal(err)
	}
	return rec.Others
}

// TestSurvey: of three namespaces that with a service that gets no answers is kept, the others are
// counted, and one that tracks nothing does not begin to.
func TestSurvey(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	testutil.ShareHost(t)
	sick, well, empty := unanswered(t), testutil.Namespace(t, "well"), testutil.Namespace(t, "empty")
	fill(t, well, 0, 20)
	var o *snapshot.Others
	testutil.Eventually(t, "connections without an answer for long enough", func() bool {
		o = surveyOf(t, SurveyOptions{Find: among(sick, well, empty), Budget: time.Minute})
		return len(o.Suspects) > 0 && o.Suspects[0].Recording.Flows.Services.All[0].Unanswered == 5
	})
	if o.Found != 3 || o.Examined != 3 || o.Empty != 1 || o.Refused != 0 || o.Unreached != 0 || o.Unlisted != 0 || o.Error != "" {
		t.Errorf("%+v", o.Survey)
	}
	if len(o.Suspects) != 1 || o.Suspects[0].Recording.Last().Netns.Inode != sick.Inode() {
		t.Fatalf("suspects: %+v", o.Suspects)
	}
	rec := o.Suspects[0].Recording
	service := rec.Flows.Services.All[0]
	if service.Kind != snapshot.ServiceDNAT || service.Service.Port() != 53 || service.Target.Port() != 5353 || service.Unanswered != 5 {
		t.Errorf("%+v", service)
	}
	if n, ok := rec.Last().Sysctls.Int(snapshot.ConntrackCount); !ok || n < 5 {
		t.Errorf("%d entries, %v", n, ok)
	}
	if _, ok := rec.Last().ConntrackStat.Delta(rec.First().ConntrackStat, "drop"); !ok {
		t.Error("the counters of the two readings cannot be compared")
	}
	if owner := o.Suspects[0].Owner; owner.PID != os.Getpid() || !owner.Held {
		t.Errorf("owner: %+v", owner)
	}
	testutil.Inside(t, empty, func() error {
		l := testutil.Links(t, empty)
		if err := l.SetUp("lo"); err != nil {
			return err
		}
		_, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7})
		if err != nil {
			return err
		}
		c, err := net.Dial("udp", "127.0.0.1:7")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	})
	if u, err := dump.Count(empty); err != nil || u.Entries != 0 {
		t.Errorf("a namespace without rules tracks %d connections since it was read (%v)", u.Entries, err)
	}
}

// TestSurveyOfWhatCannotBeRead: namespaces that ended are left out, what is none is counted with the
// reason, and so is what there is no time for.
func TestSurveyOfWhatCannotBeRead(t *testing.T) {
	there, ended := testutil.Namespace(t), testutil.Namespace(t)
	find := among(there, ended)
	found, _, _ := find(time.Time{})
	ended.Close()
	found[1].Inode = 8 // the kernel may give its number to the next namespace, that of a survey
	none := netns.Found{Inode: 7, Path: "/proc/self/ns/mnt"}
	listed := func(time.Time) ([]netns.Found, bool, error) { return append(found, none), true, nil }
	o := surveyOf(t, SurveyOptions{Find: listed, Budget: time.Minute})
	if o.Found != 3 || o.Examined != 1 || o.Empty != 1 || o.Refused != 1 || !o.SearchCut || !strings.Contains(o.Error, "not a network namespace") {
		t.Errorf("%+v", o.Survey)
	}
	if o := surveyOf(t, SurveyOptions{Find: listed, Budget: 1}); o.Examined != 0 || o.Unreached != 3 {
		t.Errorf("without time: %+v", o.Survey)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rec, err := Record(ctx, RecordOptions{Options: Options{Netns: there}, Others: &SurveyOptions{Find: listed}})
	if err != nil || rec.Others != nil {
		t.Errorf("interrupted: %+v, %v", rec.Others, err)
	}
}

// TestRestarted: the number of a namespace that ended may be another's.
func TestRestarted(t *testing.T) {
	of := func(drops ...uint64) *totals {
		s := &snapshot.ConntrackStat{}
		for _, n := range drops {
			s.PerCPU = append(s.PerCPU, map[string]uint64{"drop": n})
		}
		return &totals{stat: s}
	}
	for _, tc := range []struct {
		before, now *totals
		want        bool
	}{
		{of(1, 2), of(1, 3), false}, {of(1, 2), of(1, 2), false}, {of(1, 2), of(5, 1), true}, {of(0), of(0, 0), true}, {&totals{}, of(1), true}, {of(1), &totals{}, true},
	} {
		if got := tc.now.restarted(tc.before); got != tc.want {
			t.Errorf("%v after %v: %v", tc.now.stat, tc.before.stat, got)
		}
	}
}

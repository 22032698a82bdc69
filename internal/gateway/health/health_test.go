package health

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/nat"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func targetOf(i int) Target {
	return Target{At: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), Check: nat.Check{Interval: 2 * time.Second, Timeout: time.Second, Rise: 2, Fall: 3}}
}

func targets(n int) (all []Target) {
	for i := range n {
		all = append(all, targetOf(i))
	}
	return all
}

func up(Target) State   { return State{Up: true} }
func down(Target) State { return State{} }

// TestRiseAndFall: of results (. succeeded, x failed), those that change the state are written U and D.
func TestRiseAndFall(t *testing.T) {
	for _, c := range []struct {
		begin func(Target) State
		in    string
		want  string
	}{
		{up, "....", "...."},
		{up, "xx.xx.", "xx.xx."},
		{up, "xxx", "xxD"},
		{up, "xxxxxx", "xxDxxx"},
		{up, "xxx.x..", "xxD.x.U"},
		{up, "xxx..xxx", "xxD.UxxD"},
		{down, "..", ".U"},
		{down, ".x.x..", ".x.x.U"},
		{down, "xxxxxxxx", "xxxxxxxx"},
	} {
		checker := New(targets(1), nil, c.begin, 1, start)
		var got strings.Builder
		for _, r := range c.in {
			now := checker.Next()
			if due := checker.Due(now, 10); len(due) != 1 {
				t.Fatalf("%d are due", len(due))
			}
			failure := map[rune]string{'x': "refused"}[r]
			changed := checker.Done(targetOf(0), failure, now)
			s, _ := checker.State(targetOf(0))
			switch {
			case changed && s.Up:
				r = 'U'
			case changed:
				r = 'D'
			}
			if changed && !s.Since.Equal(now) || s.Error != failure {
				t.Errorf("%s: %+v", c.in, s)
			}
			got.WriteRune(r)
		}
		if got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.in, got.String(), c.want)
		}
	}
}

// TestWhyDown: a host that answers again and does not count as up yet is down for a reason that can be read.
func TestWhyDown(t *testing.T) {
	wan := targetOf(0)
	wan.Through = "eth0"
	checker := New([]Target{wan}, nil, up, 1, start)
	for _, failure := range []string{"refused", "refused", "refused", ""} {
		now := checker.Next()
		checker.Due(now, 1)
		checker.Done(wan, failure, now)
	}
	s, _ := checker.State(wan)
	if s.Up || s.Error != "" || s.Why() == "" {
		t.Errorf("%+v is down: %q", s, s.Why())
	}
	if why := checker.Report().Down()["eth0"]; !strings.HasSuffix(why, ": "+s.Why()) {
		t.Errorf("reported: %q", why)
	}
}

// TestNoThundering: in each tenth of an interval about a tenth of all is checked, at the beginning and after hours.
func TestNoThundering(t *testing.T) {
	const n = 1000
	checker := New(targets(n), nil, up, 1, start)
	step, checks := 200*time.Millisecond, 0
	for i := range 10 * 3600 {
		now := start.Add(time.Duration(i+1) * step)
		due := checker.Due(now, n)
		checks += len(due)
		if len(due) < n/10/2 || len(due) > 2*n/10 {
			t.Fatalf("after %s %d are due at once", now.Sub(start), len(due))
		}
		for _, d := range due {
			checker.Done(d, "", now)
		}
	}
	if want := n * 3600; checks < want*95/100 || checks > want*105/100 {
		t.Errorf("%d checks, want about %d", checks, want)
	}
}

// TestDue: no more than asked for, those that wait longest first, none twice, and what waited is not made up for.
func TestDue(t *testing.T) {
	checker := New(targets(5), nil, up, 1, start)
	late := start.Add(time.Minute)
	seen, last := map[Target]bool{}, time.Time{}
	for n := range 3 {
		due := checker.Due(late, 2)
		if want := min(2, 5-2*n); len(due) != want {
			t.Fatalf("%d are due, want %d", len(due), want)
		}
		for _, d := range due {
			if seen[d] || checker.targets[d].due.Before(last) {
				t.Errorf("%v comes again, or late", d)
			}
			seen[d], last = true, checker.targets[d].due
		}
	}
	if !checker.Next().IsZero() || len(checker.Due(late, 5)) > 0 {
		t.Error("those that are checked are due")
	}
	checker.Done(targetOf(0), "", late)
	if next := checker.Next(); next.Before(late.Add(1800*time.Millisecond)) || next.After(late.Add(2200*time.Millisecond)) {
		t.Errorf("next after %s", next.Sub(late))
	}
}

// TestNewConfiguration: targets that stay keep their states and what is under way, others are forgotten.
func TestNewConfiguration(t *testing.T) {
	before := New(targets(3), nil, down, 1, start)
	late := start.Add(time.Minute)
	before.Due(late, 3)
	checker := New(append(targets(2), targetOf(7), targetOf(7)), before, up, 2, late)
	if checker.Len() != 3 {
		t.Errorf("%d targets", checker.Len())
	}
	for i, want := range map[int]string{0: "false", 1: "false", 7: "true"} {
		if s, ok := checker.State(targetOf(i)); !ok || fmt.Sprint(s.Up) != want {
			t.Errorf("%d: %+v, %t", i, s, ok)
		}
	}
	if checker.Done(targetOf(2), "", late) {
		t.Error("one that went changes")
	}
	checker.Done(targetOf(0), "", late)
	if due := checker.Due(late.Add(time.Hour), 9); len(due) != 2 {
		t.Errorf("%d are due, not the one that is done and the new one", len(due))
	}
	if _, ok := (*Checker)(nil).State(targetOf(0)); ok {
		t.Error("no checker has a state")
	}
}

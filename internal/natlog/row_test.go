package natlog

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/unix"
)

// TestRowsComeBack: a row has all of a start and of an end, also of one that was there before.
func TestRowsComeBack(t *testing.T) {
	one := Record{Kind: Start, Time: noon, Node: "gw1", Netns: "red", Protocol: unix.IPPROTO_TCP, Src: at("10.0.0.7:40001"), NAT: at("203.0.113.9:1024"), Dst: at("198.51.100.1:443"), Zone: 5, ReplyZone: 6}
	for name, change := range map[string]func(*Record){
		"a start":                  func(r *Record) { r.Started = noon },
		"there before":             func(r *Record) { r.Before = true },
		"there before, since when": func(r *Record) { r.Before, r.Started = true, noon.Add(-time.Hour) },
		"an end":                   func(r *Record) { r.Kind, r.Ended, r.Started = End, noon, noon.Add(-time.Hour) },
		"an end without its start": func(r *Record) { r.Kind, r.Ended = End, noon },
		"the destination alone": func(r *Record) {
			r.Kind, r.Ended, r.NAT, r.Server = End, noon, r.Server, at("10.0.0.9:5353")
		},
		"IPv6": func(r *Record) {
			r.Started, r.Src, r.NAT, r.Dst = noon, at("[fd00::7]:40001"), at("[2001:db8::9]:1024"), at("[2001:db8:1::1]:443")
		},
	} {
		want := one
		change(&want)
		row := want.Row(table.Head{Node: want.Node, Kernel: "6.1"})
		got, ok := OfRow(&row)
		if d := cmp.Diff(want, got, equal); !ok || d != "" {
			t.Errorf("%s: %t (-want +got)\n%s", name, ok, d)
		}
	}
	for name, change := range map[string]func(*table.NATLog){
		"a block":     func(row *table.NATLog) { row.Event = "block" },
		"no protocol": func(row *table.NATLog) { row.Protocol = "" },
		"no address":  func(row *table.NATLog) { row.Src = "x" },
	} {
		row := one.Row(table.Head{})
		change(&row)
		if r, ok := OfRow(&row); ok {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

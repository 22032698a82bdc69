package files

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/table"
)

// Lines of other addresses are passed over, but those that show when the log was written.
func TestWhenItWasWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "nat.jsonl")
	var text []byte
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, second := range []int{0, 10, 20, 50, 70, 80, 100, 130, 500, 510, 520} {
		r := natlog.Record{Kind: natlog.Start, Time: noon.Add(time.Duration(second) * time.Second), Protocol: 6, Src: netip.MustParseAddrPort("10.0.0.7:1"),
			NAT: netip.MustParseAddrPort("203.0.113.10:1"), Dst: netip.MustParseAddrPort("198.51.100.1:443")}
		text = r.AppendJSON(text)
	}
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var got []int
	if _, err := Read(t.Context(), name, netip.MustParseAddr("203.0.113.9"), func(r *natlog.Record) { got = append(got, int(r.Time.Sub(noon).Seconds())) }); err != nil {
		t.Fatal(err)
	}
	if want := []int{0, 50, 70, 100, 130, 500, 520}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A table of another version is no answer: its columns may mean something else.
func TestOtherSchema(t *testing.T) {
	for _, c := range []struct {
		version, want string
		rows          int
	}{{table.Schema, "", 1}, {"2", `x.parquet: it is of version "2" of the tables, and this natkit reads version ` + table.Schema, 0}} {
		name := filepath.Join(t.TempDir(), "x.parquet")
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		w := parquet.NewGenericWriter[table.NATLog](f, parquet.KeyValueMetadata(table.MetaTable, table.NATLogs), parquet.KeyValueMetadata(table.MetaSchema, c.version))
		if _, err := w.Write([]table.NATLog{{Head: table.Head{Node: "gw", Time: 1}, Event: "start", Protocol: "tcp", Src: "10.0.0.7", NATAddress: "203.0.113.9", NATPort: 1, Started: 1}}); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		f.Close()
		rows := 0
		_, err = Read(t.Context(), name, netip.MustParseAddr("203.0.113.9"), func(*natlog.Record) { rows++ })
		if rows != c.rows || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("version %s: %d rows, %v", c.version, rows, err)
		}
	}
}

package files

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/table"
)

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

package table

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const (
	docsPage  = "../../docs/parquet.md"
	docsBegin = "<!-- columns: made by make generate -->\n"
	docsEnd   = "<!-- end of columns -->"
)

// describe appends the columns of a table.
func describe[T Row](b *strings.Builder, made string) {
	fmt.Fprintf(b, "\n### %s\n\n%s\n\n| column | type | unit | meaning |\n|---|---|---|---|\n", Name[T](), made)
	for _, c := range Columns[T]() {
		kind := c.Type
		if c.Null {
			kind += ", null"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", c.Name, kind, c.Unit, c.Doc)
	}
}

//go:generate go test -count=1 -run ^(TestPage|TestSchema)$ . -args -update

// TestPage: docs/parquet.md has the columns that the code has.
func TestPage(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThe version of the schema is %s.\n", Schema)
	describe[Entry](&b, "Entries of a connection table: `natkit conntrack list`, `natkit record export --tables entries`.")
	describe[NATLog](&b, "Who had which address and ports of a NAT, and when.")
	describe[Connection](&b, "TCP connections of a capture: `natkit pcap`.")
	describe[Incident](&b, "What went wrong in a capture: `natkit pcap`, the incidents that `--keep` keeps.")
	describe[Flow](&b, "Services whose connections were followed: `natkit flows`, `natkit record export`.")
	describe[Finding](&b, "What doctor found: `natkit doctor`, `natkit record export`.")
	describe[Sample](&b, "Counters of a connection table: `natkit record export`.")
	describe[Service](&b, "Outcomes of services by the connection table: `natkit record export`.")
	b.WriteString("\n")
	text, err := os.ReadFile(docsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), docsBegin)
	was, after, end := strings.Cut(rest, docsEnd)
	if !ok || !end {
		t.Fatalf("%s has no place for the columns", docsPage)
	}
	if was == b.String() {
		return
	}
	if *update {
		if err := os.WriteFile(docsPage, []byte(before+docsBegin+b.String()+docsEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s has other columns than the code: run 'make generate'", docsPage)
}

package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/table"
)

var update = flag.Bool("update", false, "rewrite deploy/sql/tables/clickhouse.sql")

//go:generate go test -count=1 -run ^TestClickHouseTables$ . -args -update

// few are columns with few different values.
var few = []string{"node", "kernel", "netns", "boot_id", "event", "protocol", "state", "family", "kind"}

func clickHouseType(c table.Column) string {
	t := map[string]string{"string": "String", "bool": "Bool", "int32": "Int32", "int64": "Int64", "double": "Float64", "timestamp": "DateTime64(6, 'UTC')"}[c.Type]
	if c.Null {
		t = "Nullable(" + t + ")"
	}
	if slices.Contains(few, c.Name) {
		t = "LowCardinality(" + t + ")"
	}
	return t
}

func clickHouseTable(name, order string, columns []table.Column) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nCREATE TABLE IF NOT EXISTS %s (\n", name)
	for i, c := range columns {
		comma := ","
		if i == len(columns)-1 {
			comma = ""
		}
		fmt.Fprintf(&b, "  %s %s%s\n", c.Name, clickHouseType(c), comma)
	}
	fmt.Fprintf(&b, ")\nENGINE = MergeTree\nPARTITION BY toDate(time)\nORDER BY (%s)\nSETTINGS allow_nullable_key = 1;\n", order)
	return b.String()
}

// The tables for ClickHouse have the columns of the files, in their order.
func TestClickHouseTables(t *testing.T) {
	got := "-- The tables that the questions read, for a ClickHouse server: what a question asks for comes first in the order.\n" +
		"-- Made by 'make generate' from internal/table.\n" +
		clickHouseTable(table.NATLogs, "nat_address, nat_port, time", table.Columns[table.NATLog]()) +
		clickHouseTable(table.Entries, "node, time, src", table.Columns[table.Entry]()) +
		clickHouseTable(table.Samples, "node, time", table.Columns[table.Sample]()) +
		clickHouseTable(table.Services, "kind, protocol, node, time", table.Columns[table.Service]())
	const path = "../../deploy/sql/tables/clickhouse.sql"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := gocmp.Diff(string(want), got); d != "" {
		t.Errorf("the columns are others than the code's: run 'make generate':\n%s", d)
	}
}

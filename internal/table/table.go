// Package table has the tables that natkit writes for engines of many hosts (DuckDB, ClickHouse, Spark): the rows, what
// their columns mean, and their form as Parquet. Where the files go is in its child store.
package table

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Schema is the version of all tables. A column is added without a new one; a change of what one means, its type or its
// name makes a new one.
const Schema = "1"

// Keys of the metadata of a file.
const (
	MetaSchema  = "natkit.schema"
	MetaTable   = "natkit.table"
	MetaVersion = "natkit.version"
)

// OtherSchema is an error where the metadata of a file, of which value returns those of a key, say that it is of another version. What a
// program rewrote without them is taken for this one.
func OtherSchema(value func(key string) (string, bool)) error {
	if version, has := value(MetaSchema); has && version != Schema {
		return fmt.Errorf("it is of version %.20q of the tables, and this natkit reads version %s: use the natkit that wrote it, or a later one", version, Schema)
	}
	return nil
}

// Time is microseconds since 1970 (UTC); 0 is null where a column may be null.
type Time int64

// TimeOf is a time in microseconds; 0 of the zero time.
func TimeOf(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(t.UnixMicro())
}

// Time is it as a time.
func (t Time) Time() time.Time { return time.UnixMicro(int64(t)).UTC() }

// Day is the partition that a row of this time belongs into.
func (t Time) Day() string { return t.Time().Format(time.DateOnly) }

// Days are those since 1970 (UTC).
func (t Time) Days() int64 {
	const day = Time(24 * time.Hour / time.Microsecond)
	days := t / day
	if t%day < 0 {
		days--
	}
	return int64(days)
}

// Row is a row of a table.
type Row interface {
	Entry | NATLog | Connection | Incident | Flow | Finding | Sample | Service
	// When is the row's time.
	When() Time
	// Where is the row's node.
	Where() string
}

// The names of the tables.
const (
	Entries     = "entries"
	NATLogs     = "nat_log"
	Connections = "connections"
	Incidents   = "incidents"
	Flows       = "flows"
	Findings    = "findings"
	Samples     = "samples"
	Services    = "services"
)

// Name is that of the table of such rows.
func Name[T Row]() string {
	var row T
	switch any(row).(type) {
	case Entry:
		return Entries
	case NATLog:
		return NATLogs
	case Connection:
		return Connections
	case Incident:
		return Incidents
	case Flow:
		return Flows
	case Finding:
		return Findings
	case Sample:
		return Samples
	}
	return Services
}

// Column is one column of a table.
type Column struct {
	Name string
	// Type is string, bool, int32, int64, double or timestamp.
	Type string
	// Null is true where it may be null: what is not known.
	Null bool
	Unit string
	Doc  string
}

// Columns are those of a table, in their order.
func Columns[T Row]() []Column { return columnsOf(reflect.TypeFor[T]()) }

func columnsOf(t reflect.Type) (all []Column) {
	for f := range t.Fields() {
		if f.Anonymous {
			all = append(all, columnsOf(f.Type)...)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("parquet"), ",")
		all = append(all, Column{Name: name, Type: typeOf(f.Type), Null: strings.Contains(","+options+",", ",optional,"), Unit: f.Tag.Get("unit"), Doc: f.Tag.Get("doc")})
	}
	return all
}

func typeOf(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[Time]():
		return "timestamp"
	case t.Kind() == reflect.Float64:
		return "double"
	}
	return t.Kind().String()
}

package report

import (
	"bytes"
	"testing"
	"time"
)

type csvInner struct {
	Name string `json:"name"`
}

type testRow struct {
	csvInner
	Count  uint64            `json:"count,omitempty"`
	Share  float64           `json:"share"`
	Usual  *string           `json:"default"`
	On     bool              `json:"on"`
	At     time.Time         `json:"at"`
	SetBy  []string          `json:"set_by"`
	Users  []csvInner        `json:"users"`
	Along  map[string]string `json:"along"`
	Hidden string            `json:"-"`
}

func TestCSV(t *testing.T) {
	usual := "2\x1b[31m"
	rows := []testRow{
		{csvInner: csvInner{"a,\"b\""}, Count: 1 << 60, Share: 0.25, Usual: &usual, On: true, At: time.Unix(0, 0).UTC(), SetBy: []string{"x", "y"}, Hidden: "no"},
		{csvInner: csvInner{"c"}, Users: []csvInner{{"no"}}},
	}
	want := "name,count,share,default,on,at,set_by\n" +
		"\"a,\"\"b\"\"\",1152921504606846976,0.25," + clean(usual) + ",true,1970-01-01T00:00:00Z,x y\n" +
		"c,0,0,,false,0001-01-01T00:00:00Z,\n"
	var out bytes.Buffer
	if err := CSV(&out, rows); err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
	out.Reset()
	if err := CSV(&out, []testRow(nil)); err != nil || out.String() != "name,count,share,default,on,at,set_by\n" {
		t.Errorf("%v %q", err, out.String())
	}
}

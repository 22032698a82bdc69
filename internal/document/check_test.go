package document

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type plot struct {
	Name   string            `yaml:"name" check:"required word"`
	Kind   string            `yaml:"kind" check:"kind"`
	Rows   int               `yaml:"rows" check:"1..10"`
	Wait   time.Duration     `yaml:"wait" check:"0s..1m"`
	Least  float64           `yaml:"least" check:"0.5.."`
	Beds   []bedOf           `yaml:"beds" check:"len=1..2"`
	Words  []string          `yaml:"words" check:"kind"`
	Counts map[string]int    `yaml:"counts" check:"keys=kind 1..3"`
	Tags   map[string]labels `yaml:"tags" check:"keys=kind,word"`
	Only   *bedOf            `yaml:"only"`
}

type labels map[string]string

type bedOf struct {
	Plants uint16 `yaml:"plants" check:"required 1..9"`
}

func TestCheck(t *testing.T) {
	rules := map[string]Rule{"kind": OneOf("sun", "shade"), "word": func(v any) string {
		if v == "bad" {
			return "another word"
		}
		return ""
	}}
	good := func() plot { return plot{Name: "a", Beds: []bedOf{{3}}} }
	for _, tt := range []struct {
		change func(*plot)
		path   []any
		want   string
	}{
		{func(*plot) {}, nil, ""},
		{func(p *plot) { p.Name = "" }, []any{"name"}, "name is required"},
		{func(p *plot) { p.Name = "bad" }, []any{"name"}, `name "bad": expected another word`},
		{func(p *plot) { p.Kind = "moon" }, []any{"kind"}, `kind "moon": expected one of: sun, shade`},
		{func(p *plot) { p.Rows = 11 }, []any{"rows"}, "rows 11: expected 1 to 10"},
		{func(p *plot) { p.Wait = time.Hour }, []any{"wait"}, "wait 1h0m0s: expected 0s to 1m"},
		{func(p *plot) { p.Least = 0.25 }, []any{"least"}, "least 0.25: expected 0.5 or more"},
		{func(p *plot) { p.Beds = nil }, []any{"beds"}, "beds: expected 1 to 2 in the list, found 0"},
		{func(p *plot) { p.Beds = append(p.Beds, bedOf{}) }, []any{"beds", 1, "plants"}, "beds.plants is required: 1 to 9"},
		{func(p *plot) { p.Only = &bedOf{12} }, []any{"only", "plants"}, "only.plants 12: expected 1 to 9"},
		{func(p *plot) { p.Words = []string{"sun", ""} }, []any{"words", 1}, `words "": expected one of: sun, shade`},
		{func(p *plot) { p.Counts = map[string]int{"sun": 0} }, []any{"counts", "sun"}, "counts.sun 0: expected 1 to 3"},
		{func(p *plot) { p.Counts = map[string]int{"sun": 4} }, []any{"counts", "sun"}, "counts.sun 4: expected 1 to 3"},
		{func(p *plot) { p.Tags = map[string]labels{"moon": nil} }, []any{"tags", "moon"}, `key "moon": expected one of: sun, shade`},
		{func(p *plot) { p.Tags = map[string]labels{"sun": {"bad": ""}} }, []any{"tags", "sun", "bad"}, `key "bad": expected another word`},
	} {
		p := good()
		tt.change(&p)
		var want *Problem
		if tt.want != "" {
			want = &Problem{tt.path, tt.want}
		}
		if diff := cmp.Diff(want, Check(&p, rules)); diff != "" {
			t.Error(diff)
		}
	}
	if diff := cmp.Diff([]string{"name", "beds"}, Given(good())); diff != "" {
		t.Error(diff)
	}
}

package report

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/units"
)

// exchangeColumns are those of loads whose far end told whom it saw.
var exchangeColumns = []Column{{Head: "traffic"}, {Head: "from"}, {Head: "to"}, {Head: "answered", Right: true},
	{Head: "failed", Right: true}, {Head: "seen as"}, {Head: "ports"}, {Head: "tracked", Right: true}, {}}

// exchangeView is a table of one stage.
type exchangeView struct {
	Stage string
	Rows  [][]Cell
}

// exchangeViews are those of stages that have such loads, a row for each.
func exchangeViews(r *lab.Report) (all []exchangeView) {
	for _, s := range r.Stages {
		v := exchangeView{Stage: s.Name}
		for _, l := range s.Loads {
			if l.Exchange != nil {
				v.Rows = append(v.Rows, exchangeCells(&l))
			}
		}
		if len(v.Rows) > 0 {
			all = append(all, v)
		}
	}
	return all
}

func (p *printer) labExchanges(r *lab.Report) {
	for _, v := range exchangeViews(r) {
		t := &Table{Indent: 2, Columns: exchangeColumns}
		for _, row := range v.Rows {
			t.Cells(row...)
		}
		p.heading("Who saw whom in " + v.Stage)
		p.table(t)
	}
}

func exchangeCells(l *lab.LoadReport) []Cell {
	x := l.Exchange
	verdict := Cell{"as it should be", Good}
	if len(x.Faults) > 0 {
		verdict = Cell{strings.Join(x.Faults, ", "), Bad}
	}
	return []Cell{{Text: x.Name}, {Text: l.From}, {Text: x.Server}, {Text: units.Count(l.Answered)}, {Text: units.Count(l.Failed)},
		{Text: seenWords(x.Seen)}, {Text: portsSeen(x, l.Answered)}, {Text: units.Count(x.Entries)}, verdict}
}

// seenWords are up to two addresses, or the first and the last one and how many.
func seenWords(seen []lab.SeenAddress) string {
	switch n := len(seen); n {
	case 0:
		return "–"
	case 1:
		return seen[0].Address.String()
	case 2:
		return seen[0].Address.String() + ", " + seen[1].Address.String()
	default:
		return fmt.Sprintf("%s … %s, %d of them", seen[0].Address, seen[n-1].Address, n)
	}
}

// portsSeen says whether clients kept their ports, and which ones were seen where not.
func portsSeen(x *lab.ExchangeReport, answered int64) string {
	switch {
	case answered == 0:
		return "–"
	case x.KeptPorts == answered:
		return "kept"
	}
	return fmt.Sprintf("%d-%d", x.FirstPort, x.LastPort)
}

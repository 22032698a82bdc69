package diagnose

import (
	"encoding/json"
	"strings"

	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/snapshot"
)

// name adds what the host calls the addresses in the report. What the last snapshot does not know any more, the one
// before it may.
func (r *Report) name(rec *snapshot.Recording) {
	known := []*snapshot.Names{rec.Last().Names, rec.First().Names}
	if known[0] == nil && known[1] == nil {
		return
	}
	for i := range r.Findings {
		_, r.Findings[i].Names = names.Mentioned(textOf(&r.Findings[i]), known...)
	}
	r.Names, _ = names.Mentioned(textOf(r), known...)
}

// textOf is all that v says, as the form that it has in documents.
func textOf(v any) string {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // which printing it reports
		return ""
	}
	return text.String()
}

package report

import (
	"io"

	"github.com/natkit/natkit/internal/simulate"
)

func SimulateHTML(w io.Writer, r *simulate.Result) error { return nil }

package report

import (
	"encoding/json"
	"fmt"
	"io"
)

// JSON writes v as one indented document that ends with a newline. Nothing is
// written where v cannot be encoded.
func JSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %T as JSON: %w", v, err)
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

package report

// Clean makes control characters in text from elsewhere visible, and takes line
// ends for spaces: see clean.
func Clean(text string) string { return clean(text) }

// TextWidth is the number of terminal columns that text takes.
func TextWidth(text string) int { return textWidth(text) }

// Truncate shortens text to width columns, with an ellipsis where it was longer.
func Truncate(text string, width int) string {
	switch {
	case width <= 0:
		return ""
	case width == 1 && textWidth(text) > 1:
		return "…"
	}
	return truncate(text, width)
}

// Wrap breaks text at spaces into lines of at most width columns.
func Wrap(text string, width int) []string { return wrap(text, width) }

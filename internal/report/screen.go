package report

import "strings"

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

// Fit breaks lines that are wider than the screen, where its width is known; they go on
// below their text.
func (s Style) Fit(text string) string {
	if s.Columns <= 0 {
		return text
	}
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		out = append(out, hang(line, s.Columns)...)
	}
	return strings.Join(out, "\n")
}

// Reflow lays prose out anew for a screen: paragraphs are filled, and other lines that
// are too wide go on below their text.
func Reflow(text string, width int) string {
	var out, paragraph []string
	end := func() {
		if len(paragraph) > 0 {
			out = append(out, hang(strings.Join(paragraph, " "), width)...)
			paragraph = nil
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if prose := line != "" && line[0] != ' ' && !strings.Contains(line, "  ") && !strings.HasSuffix(line, ":"); prose {
			paragraph = append(paragraph, line)
			continue
		}
		if strings.HasSuffix(line, ":") && line[0] != ' ' {
			paragraph = append(paragraph, line)
			end()
			continue
		}
		end()
		out = append(out, hang(line, width)...)
	}
	end()
	return strings.Join(out, "\n")
}

package report

// Style says how text may look.
type Style struct {
	// Colour allows ANSI escape sequences.
	Colour bool
	// Columns that everything has to fit into, if it can; 0, for a pipe, stands for text
	// in Width columns and tables as wide as they are. Unlimited breaks nothing.
	Columns int
}

func (s Style) columns() int {
	if s.Columns > 0 {
		return s.Columns
	}
	return Width
}

// Tone is how a piece of text stands out where colour is allowed.
type Tone string

// The tones, as parameters of the ANSI sequence SGR.
const (
	Plain Tone = ""
	Bold  Tone = "1"
	Dim   Tone = "2"
	Good  Tone = "32"
	Warn  Tone = "33"
	Bad   Tone = "31"
	// Alarm is for what loses connections now.
	Alarm Tone = "1;31"
)

// Paint gives text a tone, or returns it as it is.
func (s Style) Paint(tone Tone, text string) string {
	if !s.Colour || tone == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(tone) + "m" + text + "\x1b[0m"
}

// WantsColour decides by what the user asked for: NO_COLOR (no-color.org) forbids
// colour, CLICOLOR_FORCE (bixense.com/clicolors) wants it even in a pipe, and
// without either it is for terminals that are not dumb.
func WantsColour(isTerminal bool, getenv func(string) string) bool {
	if getenv("NO_COLOR") != "" {
		return false
	}
	if force := getenv("CLICOLOR_FORCE"); force != "" && force != "0" {
		return true
	}
	return isTerminal && getenv("TERM") != "dumb"
}

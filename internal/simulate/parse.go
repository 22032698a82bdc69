package simulate

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/document"
)

// MaxSource bounds the text of a configuration, in bytes.
const MaxSource = 256 << 10

// Parse reads a configuration, strictly: a key that is not known, a value that does
// not fit or makes no sense is a *document.SyntaxError with line and column. The file
// that Arrivals.CSV names is not read.
func Parse(filename string, source []byte) (*Config, error) {
	c := new(Config)
	s := document.Source{File: filename, What: "simulation", Text: source, Limit: MaxSource}
	if err := s.Decode(c, c.check); err != nil {
		return nil, err
	}
	return c, nil
}

// maxPoints bounds the lines of a CSV file.
const maxPoints = 1_000_000

// ParseCSV reads a curve: a line "seconds,rate" for each point, in the order of time.
// Empty lines, a heading in the first line, and the byte order mark that spreadsheets
// write are skipped. Errors begin with the file's name and the number of the line.
func ParseCSV(filename string, source []byte) (points []RatePoint, err error) {
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(string(source), "\ufeff")) {
		number++
		text := strings.TrimSpace(line)
		if text == "" {
			continue
		}
		p, err := parsePoint(text)
		if err != nil && number == 1 && isHeading(text) {
			continue
		}
		if err == nil {
			err = p.follows(points)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", filename, number, err)
		}
		points = append(points, p)
	}
	if len(points) == 0 {
		return nil, fmt.Errorf("%s: expected lines with seconds,rate, found none", filename)
	}
	return points, nil
}

// isHeading reports whether neither field is a number.
func isHeading(line string) bool {
	for field := range strings.SplitSeq(line, ",") {
		if _, err := strconv.ParseFloat(strings.TrimSpace(field), 64); err == nil {
			return false
		}
	}
	return true
}

func (p *RatePoint) follows(points []RatePoint) error {
	switch {
	case len(points) == maxPoints:
		return fmt.Errorf("expected at most %d points", maxPoints)
	case len(points) > 0 && p.At.Duration <= points[len(points)-1].At.Duration:
		return errors.New("expected a later time than in the line before")
	}
	return nil
}

func parsePoint(text string) (p RatePoint, err error) {
	at, rate, ok := strings.Cut(text, ",")
	since, err1 := strconv.ParseFloat(strings.TrimSpace(at), 64)
	p.Rate, err = strconv.ParseFloat(strings.TrimSpace(rate), 64)
	if !ok || err != nil || err1 != nil {
		return p, fmt.Errorf("expected seconds,rate, found %q", document.OneLine(text))
	}
	if !(since >= 0 && since <= longest.Seconds()) || !(p.Rate >= 0 && p.Rate <= mostRate) {
		return p, fmt.Errorf("expected 0 to %.0f seconds and 0 to %d connections per second, found %q", longest.Seconds(), mostRate, document.OneLine(text))
	}
	p.At.Duration = time.Duration(math.Round(since * float64(second)))
	return p, nil
}

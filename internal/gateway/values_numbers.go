package gateway

import (
	"errors"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/natkit/natkit/internal/document"
)

var errNumber = errors.New("not a number")

// multiples are written after a number. They count in thousands, as ports and
// connections do.
var multiples = []struct {
	suffix string
	factor int64
}{{"M", 1_000_000}, {"k", 1_000}}

// parseCount reads 200000, 200k or 2M.
func parseCount(text string) (Count, error) {
	factor := int64(1)
	for _, m := range multiples {
		if digits, ok := strings.CutSuffix(text, m.suffix); ok {
			text, factor = digits, m.factor
			break
		}
	}
	const most = 1 << 32
	n, err := strconv.ParseUint(text, 10, 33)
	if err != nil || n == 0 || int64(n)*factor > most {
		return 0, errNumber
	}
	return Count(int64(n) * factor), nil
}

// UnmarshalYAML reads it and keeps the place for an error.
func (c *Count) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, "a number such as 200000, 200k or 2M", func(text string) (err error) {
		*c, err = parseCount(text)
		return err
	})
}

func (c Count) String() string {
	for _, m := range multiples {
		if n := int64(c); n != 0 && n%m.factor == 0 {
			return strconv.FormatInt(n/m.factor, 10) + m.suffix
		}
	}
	return strconv.FormatInt(int64(c), 10)
}

// parsePerTime reads 5000/s.
func parsePerTime(text string) (PerTime, error) {
	digits, ok := strings.CutSuffix(text, "/s")
	if !ok {
		return 0, errNumber
	}
	n, err := parseCount(digits)
	return PerTime(n), err
}

// UnmarshalYAML reads it and keeps the place for an error.
func (p *PerTime) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, "a number per second such as 5000/s", func(text string) (err error) {
		*p, err = parsePerTime(text)
		return err
	})
}

func (p PerTime) String() string { return Count(p).String() + "/s" }

// UnmarshalYAML reads it and keeps the place for an error.
func (s *Switch) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, "on or off", func(text string) error {
		switch text {
		case "on", "true":
			*s = true
		case "off", "false":
			*s = false
		default:
			return errors.New("neither")
		}
		return nil
	})
}

func (s Switch) String() string {
	if s {
		return "on"
	}
	return "off"
}

// UnmarshalYAML reads it and keeps the place for an error.
func (r *Random) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, "on, off or fully", func(text string) error {
		switch text {
		case "on", "true":
			*r = RandomPorts
		case "off", "false":
			*r = ""
		case "fully":
			*r = RandomFully
		default:
			return errors.New("no way to choose")
		}
		return nil
	})
}

// String is the written form.
func (r Random) String() string {
	switch r {
	case "":
		return "off"
	case RandomPorts:
		return "on"
	}
	return string(r)
}

// What TCP allows a maximum segment size to be: every host takes 536 (RFC 9293,
// 3.7.1), and no packet carries more than 65495 (65535 without two headers).
const (
	leastMSS = 536
	mostMSS  = 65495
)

// UnmarshalYAML reads it and keeps the place for an error.
func (m *MSS) UnmarshalYAML(n *yaml.Node) error {
	return document.Scalar(n, "clamp, or a number of bytes such as 1360", func(text string) error {
		if text == "clamp" {
			*m = MSS{Clamp: true}
			return nil
		}
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return err
		}
		if n < leastMSS || n > mostMSS {
			return document.Advice("a segment has 536 to 65495 bytes")
		}
		*m = MSS{Bytes: uint16(n)}
		return nil
	})
}

// String is the written form; empty where nothing is bounded.
func (m MSS) String() string {
	switch {
	case m.Clamp:
		return "clamp"
	case m.Bytes == 0:
		return ""
	}
	return strconv.Itoa(int(m.Bytes))
}

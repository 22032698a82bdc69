package iptables

import (
	"errors"
	"strings"
)

var errQuote = errors.New("a quotation mark is not closed")

// tokens splits a line as a shell does, and as iptables-restore does.
func tokens(line string) ([]string, error) {
	var all []string
	var word strings.Builder
	open, quote := false, byte(0)
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && quote != '\'' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
			open = true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, open = c, true
		case c == ' ' || c == '\t':
			if open {
				all = append(all, word.String())
				word.Reset()
				open = false
			}
		default:
			word.WriteByte(c)
			open = true
		}
	}
	if quote != 0 {
		return nil, errQuote
	}
	if open {
		all = append(all, word.String())
	}
	return all, nil
}

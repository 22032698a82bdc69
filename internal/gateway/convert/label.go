package convert

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/natkit/natkit/internal/gateway"
)

// nameable is a comment that can be the name of a rule, keeps the mark of OpenWrt's firewall before a comment.
var (
	nameable = regexp.MustCompile(`^[A-Za-z0-9._-]{1,40}$`)
	keeps    = regexp.MustCompile(`^!fw[34](: |$)`)
)

// label gives rules the names or comments of the original: a word that one rule has alone is its name.
func label(rules []*made) {
	count := map[string]int{}
	for _, m := range rules {
		count[m.comment()]++
	}
	for _, m := range rules {
		switch text := m.comment(); {
		case text == "":
		case count[text] == 1 && nameable.MatchString(text):
			m.rule.Name = gateway.Name(text)
		default:
			m.rule.Note = gateway.Remark(text)
		}
	}
}

// comment is what people wrote of the rules that it stands for, as a file can have it.
func (m *made) comment() string {
	const most = 100
	for _, e := range m.from {
		text := strings.Map(func(r rune) rune {
			switch {
			case r == '"':
				return '\''
			case r == '\\' || !unicode.IsPrint(r) || r == utf8.RuneError:
				return ' '
			}
			return r
		}, keeps.ReplaceAllString(e.Rule.Comment, ""))
		for len(text) > most {
			_, size := utf8.DecodeLastRuneInString(text)
			text = text[:len(text)-size]
		}
		if text = strings.TrimSpace(text); text != "" {
			return text
		}
	}
	return ""
}

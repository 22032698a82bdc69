package cli

import (
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack/match"
)

// prefix, u16 and u8 read the value of a flag into a filter.
func prefix(to *netip.Prefix) func(string) error {
	return func(text string) (err error) {
		*to, err = match.ParsePrefix(text)
		return err
	}
}

func u16(to *match.Opt[uint16]) func(string) error {
	return func(text string) error {
		n, err := match.ParseNumber(text, 16)
		*to = match.Is(uint16(n))
		return err
	}
}

func u8(to *match.Opt[uint8]) func(string) error {
	return func(text string) error {
		n, err := match.ParseNumber(text, 8)
		*to = match.Is(uint8(n))
		return err
	}
}

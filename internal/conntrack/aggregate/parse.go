package aggregate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/suggest"
)

// keysMax bounds a group's length.
const keysMax = 8

// Names are the keys that ParseKeys knows.
func Names() []string { return slices.Clone(kindNames[:]) }

// ParseKeys reads keys separated by commas: state,src/24.
func ParseKeys(text string) ([]Key, error) {
	var keys []Key
	for part := range strings.SplitSeq(text, ",") {
		k, err := parseKey(strings.ToLower(strings.TrimSpace(part)))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(keys, func(other Key) bool { return other.kind == k.kind && other.bits == k.bits }) {
			return nil, fmt.Errorf("key %q is there twice", k.name)
		}
		keys = append(keys, k)
	}
	if len(keys) > keysMax {
		return nil, fmt.Errorf("%d keys: at most %d can be taken at a time", len(keys), keysMax)
	}
	return keys, nil
}

func parseKey(name string) (Key, error) {
	word, prefix, hasPrefix := strings.Cut(name, "/")
	i := slices.Index(kindNames[:], word)
	if i < 0 {
		return Key{}, unknownKey(word)
	}
	k := Key{kind: kind(i), bits: [versions]int{32, 128}, name: name}
	if !hasPrefix {
		return k, nil
	}
	if !k.kind.isAddress() {
		return Key{}, fmt.Errorf("key %q: only addresses have prefixes: src, dst, reply-src, reply-dst, snat-address", name)
	}
	if err := k.parsePrefix(prefix); err != nil {
		return Key{}, fmt.Errorf("key %q: %w", name, err)
	}
	return k, nil
}

// parsePrefix reads a length that is IPv4's where it can be, and IPv6's else; or both,
// separated by a slash.
func (k *Key) parsePrefix(text string) error {
	first, second, both := strings.Cut(text, "/")
	bits, err := prefixLength(first, 128)
	switch {
	case err != nil:
		return err
	case both && bits > 32:
		return fmt.Errorf("the first of two lengths is IPv4's: it must be from 0 to 32")
	case bits > 32:
		k.bits[v6] = bits
	default:
		k.bits[v4] = bits
	}
	if both {
		k.bits[v6], err = prefixLength(second, 128)
	}
	return err
}

func prefixLength(text string, most int) (int, error) {
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || int(n) > most {
		return 0, fmt.Errorf("the length of a prefix must be from 0 to 32 (IPv4) or to 128 (IPv6), as in src/24, src/64 or src/24/64")
	}
	return int(n), nil
}

func unknownKey(word string) error {
	if word == "" {
		return fmt.Errorf("a key is missing; there are: %s", strings.Join(kindNames[:], ", "))
	}
	known := kindNames[:]
	if name := otherNames[word]; name != "" {
		return fmt.Errorf("unknown key %q: did you mean %q?; there are: %s", word, name, strings.Join(known, ", "))
	}
	return fmt.Errorf("unknown key %q%s; there are: %s", word, suggest.Hint(word, known), strings.Join(known, ", "))
}

// other names that people know from other tools.
var otherNames = map[string]string{
	"protocol": "proto", "source": "src", "destination": "dst", "dest": "dst", "port": "dport",
	"saddr": "src", "daddr": "dst", "ip": "src", "address": "src", "version": "family", "fwmark": "mark",
	"snat": "snat-address", "nat-address": "snat-address", "assured": "status", "tcp-state": "state",
}

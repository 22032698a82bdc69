package nft

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/natrules"
)

// object is a chain with its rules or a set with its elements, told by one
// fingerprint.
type object struct {
	kind, name string
	// parts is the number of its rules or elements.
	parts int
	sum   string
}

func (o object) key() string { return o.kind + " " + o.name }

// words are the key for people.
func (o object) words() string { return strings.ReplaceAll(o.key(), "sets of-rules", "sets of rules") }

// objectsOf are the table's objects by kind and name, but for the marks.
func objectsOf(t *natrules.Table) []object {
	var all []object
	for _, c := range t.Chains {
		if c.Name == MarkChain {
			continue
		}
		h := sha256.New()
		addPart(h, c.Content)
		n := 0
		for _, r := range t.Rules {
			if r.Chain == c.Name {
				addPart(h, r.Content)
				n++
			}
		}
		all = append(all, object{"chain", c.Name, n, sum(h)})
	}
	var anonymous []object
	for _, s := range t.Sets {
		if s.Anonymous {
			anonymous = append(anonymous, setObject(s))
		} else {
			all = append(all, setObject(s))
		}
	}
	all = append(all, together(anonymous))
	for _, name := range t.Flowtables {
		all = append(all, object{"flowtable", name, 0, sum(sha256.New())})
	}
	slices.SortFunc(all, func(a, b object) int { return cmp.Compare(a.key(), b.key()) })
	return all
}

// together is one object for all sets that belong to rules: their names are numbers of
// the kernel's and say nothing.
func together(sets []object) object {
	o := object{kind: "sets", name: "of-rules"}
	slices.SortFunc(sets, func(a, b object) int { return cmp.Compare(a.sum, b.sum) })
	h := sha256.New()
	for _, s := range sets {
		addPart(h, []byte(s.sum))
		o.parts += s.parts
	}
	o.sum = sum(h)
	return o
}

// setObject takes elements in an order of its own: the kernel tells them as they
// lie in its hash.
func setObject(s natrules.TableSet) object {
	h := sha256.New()
	addPart(h, s.Content)
	o := object{kind: "set", name: s.Name}
	if !s.Dynamic {
		o.parts = len(s.Elements)
		slices.SortFunc(s.Elements, func(a, b natrules.TableElement) int { return bytes.Compare(a.Content, b.Content) })
		for _, e := range s.Elements {
			addPart(h, e.Content)
		}
	}
	o.sum = sum(h)
	return o
}

// addPart adds a text so that two of them never read like two others.
func addPart(h hash.Hash, content []byte) {
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(content))))
	h.Write(content)
}

func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:8]) }

// total is the fingerprint of all objects.
func total(objects []object) string {
	h := sha256.New()
	for _, o := range objects {
		addPart(h, []byte(o.mark()))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// sealWords begin the comment that an object's fingerprint stands in.
const sealWords = "seal "

// mark is the comment that seals an object: kind, name, parts and fingerprint.
func (o object) mark() string {
	return fmt.Sprintf("%s%s %s %d %s", sealWords, o.kind, o.name, o.parts, o.sum)
}

func parseMark(comment string) (object, bool) {
	text, ok := strings.CutPrefix(comment, sealWords)
	fields := strings.Fields(text)
	if !ok || len(fields) != 4 {
		return object{}, false
	}
	n, err := strconv.Atoi(fields[2])
	return object{fields[0], fields[1], n, fields[3]}, err == nil
}

// marks is what MarkChain tells.
type marks struct {
	digest string
	sealed map[string]object
}

func marksOf(t *natrules.Table) marks {
	m := marks{sealed: map[string]object{}}
	for _, r := range t.Rules {
		if r.Chain != MarkChain {
			continue
		}
		if digest, ok := digestOf(r.Comment); ok {
			m.digest = digest
		}
		if o, ok := parseMark(r.Comment); ok {
			m.sealed[o.key()] = o
		}
	}
	return m
}

// judge compares what is there with what the writer sealed.
func (s *State) judge(objects []object, m marks) {
	s.Digest, s.Fingerprint, s.Sealed = m.digest, total(objects), len(m.sealed) > 0
	if s.Dormant {
		s.Changes = append(s.Changes, "the table is dormant: it translates nothing")
	}
	if !s.Sealed {
		return
	}
	for _, o := range objects {
		was, known := m.sealed[o.key()]
		if difference := o.difference(was, known); difference != "" {
			s.Changes = append(s.Changes, o.words()+": "+difference)
			s.changed = append(s.changed, o.key())
		}
		delete(m.sealed, o.key())
	}
	gone := make([]string, 0, len(m.sealed))
	for _, o := range m.sealed {
		gone = append(gone, o.words()+": is gone")
	}
	slices.Sort(gone)
	s.Changes = append(s.Changes, gone...)
	s.Intact = len(s.Changes) == 0
}

func (o object) difference(was object, known bool) string {
	parts := map[string]string{"chain": "rules", "set": "elements", "sets": "elements"}[o.kind]
	switch {
	case !known:
		return "is not natkit's"
	case was.sum == o.sum:
		return ""
	case was.parts != o.parts:
		return fmt.Sprintf("%d %s instead of %d", o.parts, parts, was.parts)
	default:
		return "has other " + parts
	}
}

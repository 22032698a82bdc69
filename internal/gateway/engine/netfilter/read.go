package netfilter

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"golang.org/x/sys/unix"
)

// State is natkit's table as the kernel has it.
type State struct {
	// Present is false where there is no table; the rest is then empty.
	Present bool
	// Generation is that of the namespace's whole rule set: it grows with each
	// transaction, also of other programs.
	Generation uint32
	// Digest is that of the plan that the writer left; empty where the mark is gone.
	Digest string
	// Fingerprint is a hash over all that the kernel tells of the table without what
	// packets, time and handles change.
	Fingerprint string
	// Sealed tells that the writer left a fingerprint of each object, Intact that they
	// are what the kernel tells now. Without a seal nobody knows whether it is intact.
	Sealed, Intact bool
	// Changes says what is not as the writer left it: "chain prerouting: 3 rules
	// instead of 2".
	Changes []string
	// Owned: one socket alone may change the table. Dormant: somebody switched it off,
	// and it translates nothing.
	Owned, Dormant bool
	// Counts are of the rules and elements that have counters, in the table's order.
	Counts []Counted

	// changed are the objects that the last of Changes are about, comments those of
	// each object's rules or elements.
	changed  []string
	comments map[string][]string
}

// Counted is what a rule or an element of the table counted. Of NAT rules, packets are
// new connections: the first packet alone comes there.
type Counted struct {
	// Comment is the writer's: the Ref of the gateway's rule where it is of one.
	Comment        string
	Packets, Bytes uint64
}

// Family is the family of natkit's table.
const Family = ruleset.GatewayFamily

// intact is the table that was read or sealed last and is as natkit wrote it: it need not
// be read again before somebody changes rules. Its Counts grow older.
var intact struct {
	sync.Mutex
	ns    netns.ID
	state State
}

// remember notes a state as intact, where it is.
func remember(ns *netns.Handle, s State) {
	id, err := netns.IDOf(ns)
	if err != nil || id.Cookie == 0 || !s.Sealed || !s.Intact {
		return
	}
	intact.Lock()
	defer intact.Unlock()
	intact.ns, intact.state = id, s
}

// remembered is the state that is intact; nil where it is another namespace's, or somebody
// has changed rules since.
func remembered(ns *netns.Handle) *State {
	id, err := netns.IDOf(ns)
	if err != nil || id.Cookie == 0 {
		return nil
	}
	generation, err := read.Generation(ns)
	intact.Lock()
	defer intact.Unlock()
	if err != nil || !intact.ns.Is(id) || intact.state.Generation != generation {
		return nil
	}
	s := intact.state
	return &s
}

// Read tells the state of natkit's table in a namespace (nil: this one). Needs
// CAP_NET_ADMIN in that namespace.
func Read(ns *netns.Handle) (*State, error) {
	t, err := read.TableNamed(ns, Family, Table)
	if err != nil {
		return nil, fmt.Errorf("read the gateway's state: %w", err)
	}
	if t == nil {
		return &State{}, nil
	}
	s := &State{Present: true, Generation: t.Generation, Owned: t.Owned, Dormant: t.Dormant, Counts: counts(t)}
	s.judge(objectsOf(t), marksOf(t))
	if len(s.changed) > 0 {
		s.comments = commentsOf(t)
	}
	remember(ns, *s)
	return s, nil
}

func counts(t *read.Table) []Counted {
	var all []Counted
	for _, r := range t.Rules {
		if r.Counted {
			all = append(all, Counted{r.Comment, r.Packets, r.Bytes})
		}
	}
	for _, s := range t.Sets {
		for _, e := range s.Elements {
			if e.Counted && !s.Dynamic {
				all = append(all, Counted{e.Comment, e.Packets, e.Bytes})
			}
		}
	}
	return all
}

// Compare adds to Changes which rules of the file are missing where, and how many of
// the rules and elements are not natkit's, as far as comments tell it. p is the plan
// that the table was written for.
func (s *State) Compare(p *gateway.Plan) {
	made := written(build(p, host{netmap: true}))
	for i, change := range s.Changes {
		key, _, _ := strings.Cut(change, ":")
		if !slices.Contains(s.changed, key) || made[key] == nil {
			continue
		}
		if which := details(made[key], s.comments[key]); which != "" {
			s.Changes[i] += " (" + which + ")"
		}
	}
}

func details(written, found []string) string {
	var parts []string
	if gone := missing(written, found); len(gone) > 0 {
		parts = append(parts, listed(gone)+map[bool]string{true: " is missing", false: " are missing"}[len(gone) == 1])
	}
	if n := len(missingEach(found, written)); n > 0 {
		parts = append(parts, fmt.Sprintf("%d of them not natkit's", n))
	}
	return strings.Join(parts, "; ")
}

// missing are the comments that were written and of which none is left, each once.
func missing(written, found []string) []string {
	gone := missingEach(written, found)
	slices.Sort(gone)
	return slices.Compact(gone)
}

// missingEach are those of all that are not among the others.
func missingEach(all, others []string) []string {
	known := map[string]bool{}
	for _, c := range others {
		known[c] = true
	}
	var out []string
	for _, c := range all {
		if !known[c] {
			out = append(out, c)
		}
	}
	return out
}

// listed names a few of many.
func listed(names []string) string {
	const few = 5
	switch n := len(names); {
	case n == 1:
		return names[0]
	case n <= few:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	default:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), n-few)
	}
}

// written are the comments of what the writer makes for a plan, by object.
func written(t *table) map[string][]string {
	all := map[string][]string{}
	for _, r := range t.rules {
		key := object{kind: "chain", name: r.chain}.key()
		all[key] = append(all[key], r.comment)
	}
	for _, s := range t.sets {
		key := object{kind: "set", name: s.name}.key()
		for _, e := range s.elements {
			all[key] = append(all[key], e.comment)
		}
	}
	return all
}

// commentsOf are those of a table that is there.
func commentsOf(t *read.Table) map[string][]string {
	all := map[string][]string{}
	for _, r := range t.Rules {
		key := object{kind: "chain", name: r.Chain}.key()
		all[key] = append(all[key], r.Comment)
	}
	for _, s := range t.Sets {
		key := object{kind: "set", name: s.Name}.key()
		for _, e := range s.Elements {
			all[key] = append(all[key], e.Comment)
		}
	}
	return all
}

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
func objectsOf(t *read.Table) []object {
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
func setObject(s read.TableSet) object {
	h := sha256.New()
	addPart(h, s.Content)
	o := object{kind: "set", name: s.Name}
	if !s.Dynamic {
		o.parts = len(s.Elements)
		slices.SortFunc(s.Elements, func(a, b read.TableElement) int { return bytes.Compare(a.Content, b.Content) })
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

func marksOf(t *read.Table) marks {
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

// ErrUnsealed: a plan is in force, but natkit will not see if others change its rules.
var ErrUnsealed = errors.New("the gateway's rules are in force, but natkit will not see if others change them; apply again")

// errInterleaved: what is read may have been changed since it was written.
var errInterleaved = errors.New("other programs change rules all the time")

// sealed writes the table by one transaction and then, into MarkChain, the fingerprint
// of each of its objects as the kernel tells it, so that Read finds what others change.
// Between the two somebody could have changed it: what is sealed is what the very next
// generation of the rule set has, and otherwise the table is written once more. A table
// without a seal works as well.
func sealed(ns *netns.Handle, write func() error) error {
	var err error
	for range attempts {
		var before uint32
		if before, err = read.Generation(ns); err == nil {
			err = write()
		}
		if err != nil {
			return fmt.Errorf("apply the gateway's rules: %w", err)
		}
		if err = seal(ns, max(before+1, 1)); !errors.Is(err, errInterleaved) { // 0 is left out (nf_tables_commit)
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnsealed, err)
	}
	return nil
}

// seal seals the table as it was in a generation, that of its writer.
func seal(ns *netns.Handle, written uint32) error {
	t, err := read.TableNamed(ns, Family, Table)
	if err != nil {
		return err
	}
	if t == nil || t.Generation != written {
		return errInterleaved
	}
	messages, err := sealing(t)
	if err != nil {
		return err
	}
	return attach(ns, messages, t)
}

// attach adds the seal to the table that it was made for, whatever somebody has changed
// of it by now: the seal tells. One that took its place has no use for it.
func attach(ns *netns.Handle, messages []message, t *read.Table) error {
	digest := marksOf(t).digest
	for try := range attempts {
		err := transaction(ns, messages, t.Generation)
		if try == 0 && err == nil {
			remember(ns, State{Present: true, Generation: max(t.Generation+1, 1), Digest: digest, Sealed: true, Intact: true})
		}
		if !errors.Is(err, unix.ERESTART) {
			return err
		}
		if t, err = read.TableNamed(ns, Family, Table); err != nil {
			return err
		}
		if t == nil || marksOf(t).digest != digest || len(marksOf(t).sealed) > 0 {
			return errInterleaved
		}
	}
	return errInterleaved
}

// sealing are the rules of MarkChain that seal a table: nothing leads there, they only
// tell.
func sealing(t *read.Table) (all []message, err error) {
	for _, o := range objectsOf(t) {
		m, err := rule{chain: MarkChain, exprs: []expression{&expr.Verdict{Kind: expr.VerdictReturn}}, comment: o.mark()}.message()
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}
